"""Canonical names of metrics, and the spellings of metrics, steps, epochs and splits in logs.

    loss                 training loss
    eval_loss            loss on the evaluation split
    lr                   learning rate
    grad_norm            norm of the gradients before clipping
    tokens_per_second    tokens per second, as the log counts them (of one device or of all)
    samples_per_second   samples per second, as the log counts them
    step_seconds         duration of one optimizer step, seconds
    epoch_seconds        duration of one epoch, seconds
    elapsed_seconds      time since the start, or since the line before, seconds
    memory_bytes         device memory, bytes (2**30 to the GiB)
    loss_scale           factor by which mixed precision scales the loss
    epoch                number of passes over the data; step and epoch are the position of a row

All other names are kept as logged.

To recognize the spellings of these metrics, a key is split into words. Words that name the split
(``train/loss``, ``loss_val``) and words that describe how the number was computed (``avg``,
``running``, ``step``) are removed. The remaining words must match a spelling in the tables exactly,
so that ``loss_weight``, ``lm loss PPL`` and ``min_lr`` are neither loss nor lr. If a line contains
several spellings of one metric, the most basic one is used (``Spelling.rank``).
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.patterns import pattern_of

LOSS = "loss"
EVAL_LOSS = "eval_loss"
TEST_LOSS = "test_loss"
TRAIN_LOSS = "eval_train_loss"  # loss of an evaluation on training data
LR = "lr"
GRAD_NORM = "grad_norm"
TOKENS_PER_SECOND = "tokens_per_second"
SAMPLES_PER_SECOND = "samples_per_second"
STEP_SECONDS = "step_seconds"
EPOCH_SECONDS = "epoch_seconds"
ELAPSED_SECONDS = "elapsed_seconds"
MEMORY_BYTES = "memory_bytes"
LOSS_SCALE = "loss_scale"
EPOCH = "epoch"

LOSSES = frozenset({LOSS, EVAL_LOSS, TEST_LOSS})
# Metrics that identify a line as a measurement. Learning rate and epoch are excluded, because
# configurations contain them too, next to words such as "step".
MEASURED = LOSSES | {GRAD_NORM, TOKENS_PER_SECOND, SAMPLES_PER_SECOND, STEP_SECONDS, MEMORY_BYTES}
MEASURED |= {EPOCH_SECONDS}
# Metrics that do not depend on the split: the learning rate on an evaluation line is the run's.
OF_THE_RUN = frozenset({LR, MEMORY_BYTES, LOSS_SCALE, EPOCH, ELAPSED_SECONDS})


def words(text: str) -> frozenset[str]:
    """Split text at whitespace into a set of words.

    >>> sorted(words("loss lr"))
    ['loss', 'lr']
    """
    return frozenset(text.split())


SPLITS = {
    **dict.fromkeys(words("train training trn train_inner"), "train"),
    **dict.fromkeys(words("eval evl evaluation evaluating evaluate val vali valid"), "eval"),
    **dict.fromkeys(words("validation validating validate dev heldout holdout"), "eval"),
    **dict.fromkeys(words("test testing"), "test"),
}


def _misspell(word: str) -> frozenset[str]:
    """Return a long word with two of its inner letters swapped, or one left out.

    >>> sorted(_misspell("train")), "traning" in _misspell("training"), _misspell("test")
    (['tarin', 'trani', 'trian'], True, frozenset())
    """
    inner = range(1, len(word) - 1) if len(word) > 4 else ()
    swapped = {word[:n] + word[n + 1] + word[n] + word[n + 2 :] for n in inner}
    shortened = {word[:n] + word[n + 1 :] for n in inner} if len(word) > 6 else set()
    return frozenset(swapped | shortened)


# Names of metrics are misspelt in logs: "trian_loss". A split that was missed would silently turn
# one side into the other.
SPLIT_WORDS = (*SPLITS,)
SPLITS |= {
    wrong: side
    for word, side in [*SPLITS.items()]
    if "_" not in word
    for wrong in _misspell(word)
    if wrong not in SPLITS
}

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[^\w@+]+|_+")


# Spellings in the normalized form that ``fold`` returns.
SPLIT_SPELLINGS = words("split phase mode stage type kind subset partition dataset event job_type")
RANK_SPELLINGS = words("rank global_rank")
TOTAL_SPELLINGS = words("total_steps max_steps total_iters max_iters num_steps n_batches")

# Spellings of steps and epochs in order of rank; the one of lowest rank on a line is used. Counters
# of the whole run precede counters that may restart with each epoch, and these precede counters of
# batches.
_STEPS = (
    "global_step train_global_step trainer_global_step training_global_step global_iteration "
    "global_iter acc_iter num_updates train_num_updates valid_num_updates step steps train_step "
    "training_step optimizer_step opt_step _step global_steps update_step iteration iter iters "
    "iterations it ite itr itrs niter train_iter train_iteration training_iteration "
    "total_timesteps timesteps timestep time_total_timesteps total_env_interacts num_timesteps "
    "updates batch batches n_batch batchid minibatch mini_batch micro_step episode round "
    "global_round communication_round update generation n_iter n_step n_updates "
    "misc_nupdates nupdates i count"
)
_EPOCHS = (
    "epoch época epoca train_epoch epch ep trainer_epoch end_of_epoch epoch_loaded epoch_epoch"
)
# Affixes of counters: batch_id, cur_iter, "Epoch no. 3".
_FORMS = words("{}_num {}_no {}_nr {}_number {}_id {}_idx {}_index {}_i cur_{} curr_{} current_{}")


def _ranked(spellings: str) -> dict[str, int]:
    ranks = {spelling: rank for rank, spelling in enumerate(spellings.split())}
    return {form.format(each): rank for each, rank in ranks.items() for form in _FORMS} | ranks


STEP_RANK, EPOCH_RANK = _ranked(_STEPS), _ranked(_EPOCHS)


@lru_cache(maxsize=8192)
def fold(spelling: str) -> str:
    """Normalize a spelling to lower-case words joined by underscores.

    >>> fold("Grad Norm"), fold("train/loss"), fold("CurrSamplesPerSec")
    ('grad_norm', 'train_loss', 'curr_samples_per_sec')
    """
    parted = _CAMEL.sub("_", spelling).lower()
    return _NOT_WORD.sub("_", parted).strip("_")


# Translations of words of other languages that occur in logs; the longest match is replaced.
_FOREIGN = dict(
    pair.split("=")
    for pair in words(
        "损失值=loss 损失=loss 損失=loss 损失函数=loss_fn 损失函數=loss_fn 轮次=epoch 轮数=epoch "
        "轮=epoch 步数=step 步=step 批次=batch 批次大小=batch_size 批大小=batch_size "
        "批量大小=batch_size 迭代次数=iteration 迭代=iteration 学习率=learning_rate "
        "學習率=learning_rate 准确率=accuracy 正确率=accuracy 精度=accuracy 训练集=train "
        "训练=train 訓練=train 验证集=valid 验证=valid 驗證=valid 测试集=test 测试=test 測試=test "
        "平均=average 总=total 当前=current 當前=current 剩余时间=eta 耗时=time 用时=time "
        "时间=time 秒=s 最佳=best 最优=best 最好=best 最低=best 最小=best 最高=best 最终=final "
        "保存=saving 为=is 是=is 在=in 完成=finished 结束=finished エポック=epoch "
        "学習率=learning_rate 時間=time ステップ=step 正解率=accuracy 学習=train 検証=valid "
        "テスト=test 에폭=epoch 손실=loss 정확도=accuracy 학습=train 훈련=train 검증=valid "
        "평균=average 최고=best 저장=saving 테스트=test 학습률=learning_rate 시간=time "
        "época=epoch epoca=epoch époque=epoch epoque=epoch эпоха=epoch шаг=step pérdida=loss "
        "perdida=loss perda=loss perte=loss verlust=loss потери=loss потеря=loss epoche=epoch "
        "trainingsverlust=train_loss validierungsverlust=valid_loss kayıp=loss epoka=epoch "
        "verlies=loss validatieverlies=valid_loss епоха=epoch втрати=loss epocha=epoch "
        "ztráta=loss latih=train validasi=valid perdita=loss validazione=valid "
        "iteración=iteration erreur=error fehler=error ошибка=error exactitud=accuracy "
        "acurácia=accuracy acuracia=accuracy genauigkeit=accuracy точность=accuracy "
        "entrenamiento=train treino=train entraînement=train entrainement=train обучение=train "
        "validación=valid validacion=valid validação=valid validacao=valid валидация=valid"
    )
)
# East Asian words (code points from あ on) are written without spaces, so they match anywhere.
_LONG = sorted(_FOREIGN, key=len, reverse=True)
_EASTERN = pattern_of("|".join(word for word in _LONG if word >= "あ"))
_WESTERN = pattern_of(rf"(?<![^\W_])(?:{'|'.join(w for w in _LONG if w < 'あ')})(?![^\W_])", re.I)
_HANGUL, _LETTERS = pattern_of("[가-힣]+"), pattern_of(r"[^\W\d_]+")
# Chinese ordinals, "the 3rd epoch": 第3轮, 第 3/10 个epoch.
_ORDINAL = pattern_of(
    r"第\s?(\d{1,15}(?:\s?/\s?\d{1,15})?)\s?[个次]?\s?(轮|步|批次|迭代|[A-Za-z]{2,12})"
)
_FULL_WIDTH = str.maketrans(
    {wide: f"{plain} " for wide, plain in zip("：，；、。", ":,;,.", strict=True)}
    | dict(zip("（）【】｜％＝", "()[]|%=", strict=True))
)


def in_english(text: str) -> str:
    """Translate the known words of other languages on a line into English.

    >>> in_english("第3轮 | 当前损失值：10.5，准确率：95％")
    'epoch 3 | current loss : 10.5, accuracy : 95%'
    >>> in_english("Época 3 - pérdida_val: 0.25"), in_english("epoch-0의 평균 Loss : 1.5")
    ('epoch 3 - loss_val: 0.25', 'epoch-0 average Loss : 1.5')
    """
    if any(word in _FOREIGN for word in _LETTERS.findall(text.lower())):
        text = _WESTERN.sub(lambda word: _FOREIGN.get(word[0].lower(), word[0]), text)
    if text.isascii():
        return text
    text = text.translate(_FULL_WIDTH)
    if _EASTERN.search(text):
        text = _ORDINAL.sub(r"\2 \1", text)
        text = _EASTERN.sub(lambda word: f" {_FOREIGN[word.group()]} ", text)
        text = " ".join(text.split())
    # Remove untranslated Korean words, because particles are attached to numbers. Lines without
    # numbers may be table headers, in which such words are column names.
    return _HANGUL.sub("", text).strip() if any(map(str.isdecimal, text)) else text


def decode(line: bytes) -> str:
    """Decode a line as UTF-8, or as GB 18030 if it then contains known Chinese words.

    >>> decode("损失".encode("gb18030")), decode("café".encode("latin-1"))
    ('损失', 'caf\ufffd')
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        text = line.decode("gb18030", "replace")
        return text if _EASTERN.search(text) else line.decode("utf-8", "replace")


def name_in(split: str, name: str) -> str:
    """Return the name of a metric in a split, so that evaluation and training are kept apart.

    >>> name_in("eval", "loss"), name_in("eval", "eval_loss"), name_in("eval", "lr")
    ('eval_loss', 'eval_loss', 'lr')
    >>> name_in("test", "accuracy"), name_in("eval", "val/acc"), name_in("train", "acc")
    ('test_accuracy', 'val/acc', 'acc')
    """
    if split in ("", "train") or name in OF_THE_RUN or split_of(name) in ("eval", "test"):
        return name
    return f"{split}_{name}"


@lru_cache(maxsize=8192)
def split_of(name: str) -> str:
    """Return the split that a metric name contains, or "".

    >>> split_of("val/acc"), split_of("accuracy"), split_of("train_runtime")
    ('eval', '', 'train')
    """
    parts = fold(name).split("_")
    return SPLITS.get(parts[0], "") or SPLITS.get(parts[-1], "")


_NO_LOSS = words(
    "scale scaling weight weights coef coeff fn func function type name mode ratio factor ppl best "
    "min max minimum maximum patience threshold alpha lambda lowest highest final target expected "
    "std stddev stdev var variance sem"
)
_TERMS = words("pix total g d simple percep gan real fake train val test mos metric")
_LETTERS_ONLY = pattern_of("[a-z]+")
_SCORES = words(
    "acc accuracy ppl perplexity reward rewards map miou iou f1 bleu rouge wer cer auc dice psnr "
    "ssim return entropy kl precision recall score bpb mae mse rmse fid elbo nll top1 top5 "
    "err error l1 acc1 acc5 acc@1 acc@5 prec@1 prec@5 hella hellaswag auroc auprc mcc kappa "
    "jaccard nmi ari r2 squared lpips meteor cider chrf pearson spearman ndcg mrr rmsle map50 ap50 "
    "ed"
)


@lru_cache(maxsize=8192)
def is_loss_name(name: str) -> bool:
    """Return True if a name denotes a loss of any kind.

    >>> is_loss_name("actor/pg_loss"), is_loss_name("loss_scale"), is_loss_name("l_pix")
    (True, False, True)
    """
    parts = fold(name).split("_")
    named = any(part.endswith(("loss", "losses")) for part in parts)
    named = named or (parts[0] == "l" and not _TERMS.isdisjoint(parts))  # l_pix
    return named and _NO_LOSS.isdisjoint(parts)


@lru_cache(maxsize=8192)
def is_score_name(name: str) -> bool:
    """Return True if a name denotes a quality measure of a model, such as accuracy.

    >>> is_score_name("val/acc"), is_score_name("rewards/mean"), is_score_name("batch_size")
    (True, True, False)
    """
    folded = fold(name)
    if "io_u" in folded or not _SCORES.isdisjoint(folded.split("_")):  # Keras: mean_io_u
        return True
    return "map" in _LETTERS_ONLY.findall(name.lower())  # mAP@0.5


# Scores whose names have other meanings, too.
_AMBIGUOUS_SCORES = words(
    "map reward rewards return entropy kl score err error precision recall l1 top1 top5 hella nll "
    "ed"
)


@lru_cache(maxsize=8192)
def is_evident_score(name: str) -> bool:
    """Return True if a name denotes a quality measure in any program, not only beside a training.

    >>> is_evident_score("Overall ACC"), is_evident_score("confidence score")
    (True, False)
    """
    parts = {*fold(name).split("_")}
    return is_score_name(name) and ("io_u" in fold(name) or bool(parts & _EVIDENT_SCORES))


_EVIDENT_SCORES = _SCORES - _AMBIGUOUS_SCORES


class Spelling(Struct, frozen=True):
    """The meaning of a spelling.

    Attributes:
        name: Canonical name of the metric.
        factor: Factor that converts printed values to the metric's unit.
        inverse: Whether the value is ``factor`` divided by the printed value (steps per second).
        split: Split that the spelling contains, or "".
        rank: Of several spellings of one metric on a line, the one of lowest rank is used.
    """

    name: str
    factor: float = 1.0
    inverse: bool = False
    split: str = ""
    rank: int = 0

    def scale(self, value: float) -> float:
        """Convert a printed value to the metric's unit."""
        if self.inverse:
            return self.factor / value if value else float("inf")
        return value * self.factor


def _rank_spellings(spellings: dict[str, str]) -> dict[str, Spelling]:
    """Rank spellings by their order; spellings after a "|" get ranks that are higher by 100."""
    return {
        spelling: Spelling(name, rank=100 * distance + 2 * place)
        for name, listed in spellings.items()
        for distance, group in enumerate(listed.split("|"))
        for place, spelling in enumerate(group.split())
    }


# Nouns of rates per second; "per" and names of devices are removed before the comparison.
_RATES = {
    TOKENS_PER_SECOND: "tokens token toks tok words",
    SAMPLES_PER_SECOND: "samples sample images image imgs img examples sequences seqs ins "
    "instances instance clips clip sents sentences sentence",
    STEP_SECONDS: "steps step its it iters iter iterations batches batch updates",
}
_STEP_UNITS = {
    **dict.fromkeys(words("s sec secs second seconds"), 1.0),
    **dict.fromkeys(words("ms msec msecs milliseconds"), 1e-3),
    **dict.fromkeys(words("us usec µs μs"), 1e-6),
}

# Meaning by folded spelling, without words for splits and averages, which vary freely.
_TABLE: dict[str, Spelling] = {
    f"{noun}_{second}": Spelling(name, inverse=name == STEP_SECONDS)
    for name, nouns in _RATES.items()
    for noun in nouns.split()
    for second in ("s", "sec", "second")
}
_TABLE |= {
    f"{unit}_{each}": Spelling(STEP_SECONDS, factor)
    for each in words("step it iter iteration batch update")
    for unit, factor in _STEP_UNITS.items()
}
_TABLE |= _rank_spellings(
    {
        # After the "|": losses named after their objective; policy losses of reinforcement
        # learning.
        LOSS: "loss total_loss all_loss overall_loss loss_total tot_loss loss_all lm_loss "
        "lm_loss_value loss_value totalloss loss_total_loss | gpt_loss sft_loss dpo_loss "
        "kto_loss ce_loss cross_entropy_loss crossentropyloss nll_loss actor_loss "
        "actor_pg_loss policy_loss act_loss pg_loss ppo_loss pi_loss loss_pi l_pix l_total",
        LR: "lr lr0 learning_rate learningrate learn_rate lrate actor_lr",
        GRAD_NORM: "grad_norm gradient_norm gradnorm gnorm grads_norm gradients_norm "
        "total_grad_norm global_grad_norm grad_norm_total grad_global_norm norm_grad "
        "grad_norm_all gn grdn norm actor_grad_norm",
        TOKENS_PER_SECOND: "tps tgs wps tokens_second_tgs token_throughput perf_throughput",
        STEP_SECONDS: "step_seconds perf_time_per_step updt_s",
        MEMORY_BYTES: "memory_bytes",
        LOSS_SCALE: "loss_scale loss_scaler lossscale",
    }
)

# Spellings without a unit, which are recognized only if the value or the key contains one ("312ms",
# "48GiB", step_time_ms). The most basic spellings come first; peak memory precedes other memory.
_UNITLESS = _rank_spellings(
    {
        STEP_SECONDS: "step_time iter_time iteration_time time_per_step time_per_iteration "
        "time_per_iter elapsed_time_per_iteration train_step_time train_step_timing step_timing "
        "time_step step_duration iteration_duration batch_time time_per_batch step dt time_iter "
        "global_step_time optimizer_step_time duration_per_step step_avg per_step_time batch iter",
        MEMORY_BYTES: "peak_memory max_memory max_memory_allocated peak_memory_allocated "
        "max_mem_allocated peak_mem max_mem peak_gpu_memory peak_gpu_mem max_gpu_mem gpu_mem_max "
        "peak_vram max_memory_usage memory mem memory_allocated mem_allocated allocated_memory "
        "gpu_memory gpu_mem gpu_memory_allocated gpu_memory_usage memory_usage mem_usage "
        "cuda_memory cuda_mem vram gpu_mem_used memory_used",
    }
)
# "time" denotes a step time only in units below a second, in which no longer times are printed.
_RANK_OF_TIME = 40

# Metrics that stand in for the loss in logs without a metric of that name; the first is preferred.
_STAND_INS = _rank_spellings(
    {
        LOSS: "cross_entropy crossentropy xent ce nll objective criterion sum_loss loss_sum "
        "loss_overall whole_loss loss_whole combined_loss loss_combined joint_loss "
        "full_loss main_loss task_loss model_loss predict_loss prediction_loss pred_loss "
        "loss_pred generator_loss gen_loss loss_gen g_loss loss_g vae_loss loss_vae l_g_pix "
        "g_gan g_a l1 error"
    }
)
# Words that describe how a number was computed, and how much each raises the rank of a spelling.
_MODIFIERS = {
    word: away
    for away, listed in (
        (0, "per"),
        (1, "cur curr current now step batch iter iteration local reduced set main metric metrics"),
        (1, "minibatch optim optimizer opt perf trainer stats device gpu"),
        (2, "interval global window accum last"),
        (6, "initial ave avg avr average averaged mean running smooth smoothed ema moyen média"),
        (10, "epoch epochs"),
    )
    for word in listed.split()
}
_JOINED_LOSS = pattern_of(r"(train|trn|tr|valid|vali|val|dev|eval|test|te)loss(?![a-z])")
_SETS = words("set data dataset split")
# Suffixes of learning rates of an optimizer's first parameter group, and their rank.
_OPTIMIZERS = dict.fromkeys(
    words("x adam adamw sgd fusedadam lion muon group group0 pg pg0 0 scheduler"), 2
)
# These abbreviations denote a split only in combination with another word.
_SPLITS_BESIDE = {**SPLITS, "tr": "train", "va": "eval"}
# Units within keys: "time (ms)", "time in ms", and factors: "train/lr(1e-3)".
_UNIT_IN_KEY = pattern_of(
    r"^(.*?\w)[ _]*(?:[(\[][ ]?([\w/%]{1,16}|1[eE]-\d{1,2})[ ]?[)\]]|[ ]in[ ](\w{1,8}))$"
)
_FACTOR = pattern_of(r"1[eE]-?\d{1,2}")

# Metric and conversion factor by lower-case unit. GB is 10**9 bytes and GiB 2**30 bytes. Many
# programs print GB for GiB, but logs do not show this, so the printed unit is used.
UNITS: dict[str, tuple[str, float]] = {
    **{unit: (STEP_SECONDS, factor) for unit, factor in _STEP_UNITS.items()},
    **dict.fromkeys(("m", "min", "mins", "minutes"), (STEP_SECONDS, 60.0)),
    **dict.fromkeys(("b", "bytes"), (MEMORY_BYTES, 1.0)),
    **{f"{prefix}b": (MEMORY_BYTES, 1e3 ** (i + 1)) for i, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": (MEMORY_BYTES, 1024.0 ** (i + 1)) for i, prefix in enumerate("kmgt")},
}
_COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9}


@lru_cache(maxsize=8192)
def spelling_of(key: str) -> Spelling | None:
    """Return the meaning of a key without regard to units, or None if the spelling is unknown.

    >>> spelling_of("train/loss").name, spelling_of("Avg Valid Loss").split
    ('loss', 'eval')
    >>> spelling_of("loss_weight"), spelling_of("lm loss PPL"), spelling_of("it/s").inverse
    (None, None, True)
    """
    known = _find_spelling(_JOINED_LOSS.sub(r"\1_loss", fold(key)), _TABLE)
    if known and known.name == LOSS and "loss/value" in key.lower():
        return None  # the loss of a value function (critic)
    # "step_s" may mean seconds per step, unlike "step/s" and "steps_per_s".
    return None if known and known.inverse and "/" not in key and "per" not in key else known


def list_spellings(metric: str) -> list[str]:
    """Return the names that a metric may have in logs, in order of rank; other names as given.

    >>> list_spellings("val_loss")[:3], list_spellings("val_f1")
    (['val_loss', 'eval_total_loss', 'eval_all_loss'], ['val_f1'])
    """
    *before, last = fold(metric).split("_")
    split = SPLITS.get(before[0]) if len(before) == 1 else ""
    if last != LOSS or (before and split not in ("eval", "test")):
        return [metric]
    prefix = f"{split}_" if split else ""
    losses = sorted((known.rank, key) for key, known in _TABLE.items() if known.name == LOSS)
    return [metric, *(f"{prefix}{key}" for _, key in losses if key != LOSS)]


def stand_in_rank(name: str) -> int | None:
    """Return how well a metric can stand in for a missing loss: the lowest rank is best, or None.

    >>> stand_in_rank("Cross entropy") < stand_in_rank("Generator Loss"), stand_in_rank("accuracy")
    (True, None)
    """
    known = _find_spelling(fold(name), _STAND_INS)
    return known.rank if known and known.split in ("", "train") else None


_MEANS = ("mean", "avg", "average")


def _find_spelling(folded: str, table: dict[str, Spelling]) -> Spelling | None:
    """Look up the words of a key that remain after removing splits and modifiers."""
    if known := table.get(folded):
        return known
    parts = folded.split("_")
    if len(parts) > 8:
        return None
    split, left, away = "", [], 0
    for part in parts:
        named = _SPLITS_BESIDE.get(part)
        if part == "on" or (part in _SETS and split):
            continue  # "Loss on validation set"
        if named is None:
            away += 2 * (part == "losses")
            left.append(part.replace("losses", "loss"))
        elif split not in ("", named):
            return None  # two splits: an evaluation on training data
        else:
            split, away = named, away + 1
    if [part for part in left if part not in _MEANS] == ["cost"] and (
        not split or "on" in parts
    ):  # a "training cost" may be in seconds
        return Spelling(LOSS, split=split, rank=200)
    for dropped in ({}, _MODIFIERS, _OPTIMIZERS):
        away += sum(dropped.get(part, 0) for part in left)
        left = [part for part in left if part not in dropped]
        known = table.get("_".join(left))
        if known and (known.name == LR or dropped is not _OPTIMIZERS):
            return replace(known, split=split, rank=known.rank + away)
    return None


def _find_spelling_with_unit(key: str, unit: str) -> Spelling | None:
    """Return the meaning of a key whose value has a unit, or None if they are incompatible."""
    if "/" in unit and (rate := spelling_of(unit)):
        return rate
    if unit[1:2] == " " and (rate := spelling_of(unit[2:])):  # 12.3K tokens/s
        return replace(rate, factor=_COUNTS[unit[0].lower()])
    lower, folded = unit.lower(), fold(key)
    known, opened = _find_spelling(folded, _TABLE), _find_spelling(folded, _UNITLESS)
    if known and _FACTOR.fullmatch(unit):
        return replace(known, factor=known.factor * float(unit))
    if known and lower in _COUNTS and known.name in (TOKENS_PER_SECOND, SAMPLES_PER_SECOND):
        return replace(known, factor=_COUNTS[lower])
    if opened and opened.name == MEMORY_BYTES and lower in ("k", "m", "g", "t"):
        lower += "b"
    measured, factor = UNITS.get(lower, ("", 1.0))
    if opened and opened.name == measured:
        return replace(opened, factor=factor)
    if folded == "time" and measured == STEP_SECONDS and factor < 1:
        return Spelling(STEP_SECONDS, factor, rank=_RANK_OF_TIME)
    return known if known and known.name == measured and not known.inverse else None


def name_of(key: str) -> str:
    """Return the canonical name of the metric that a key denotes, or "".

    >>> name_of("Train Loss"), name_of("gamma")
    ('loss', '')
    """
    known = metric_of(key)
    return known.name if known else ""


@lru_cache(maxsize=8192)
def metric_of(key: str, unit: str = "") -> Spelling | None:
    """Return the meaning of a key, with the unit given separately or contained in the key.

    Returns:
        None if the key is unknown or incompatible with the unit.

    >>> metric_of("elapsed time per iteration (ms)").factor, metric_of("mem_gb").factor
    (0.001, 1000000000.0)
    >>> metric_of("step_time", "ms").factor, metric_of("memory", "GiB").factor
    (0.001, 1073741824.0)
    >>> metric_of("loss", "ms"), metric_of("Speed", "samples/sec").name, metric_of("step_time")
    (None, 'samples_per_second', None)
    """
    if unit:
        return _find_spelling_with_unit(key, unit)
    if known := spelling_of(key):
        return known
    if found := _UNIT_IN_KEY.match(key):
        return _find_spelling_with_unit(found[1], found[2] or found[3]) or spelling_of(found[1])
    bare, _, last = fold(key).rpartition("_")
    return _find_spelling_with_unit(bare, last) if bare and last in UNITS and last != "m" else None


def is_step_key(key: str, unit: str = "") -> bool:
    """Return True if a key counts steps; "step: 10ms" is a duration.

    >>> is_step_key("Global Step"), is_step_key("step", "ms")
    (True, False)
    """
    return fold(key) in STEP_RANK and not (unit and metric_of(key, unit) is not None)


def is_position_key(key: str) -> bool:
    """Return True if a key denotes a step or an epoch."""
    return fold(key) in STEP_RANK or fold(key) in EPOCH_RANK
