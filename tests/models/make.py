"""make.py - what PyTorch makes of small models with random weights: tests/models/data/NAME.{json,safetensors}.

    python tests/models/make.py [NAME ...]

Needs torch, torchvision and transformers. A model comes from its library's own configuration class, dropout 0. The truth
is its logits, loss and gradients in float64; beside it stand the errors of PyTorch's own autocast on the CPU. Weights are
float32 numbers under the library's names. Those of a model that cannot be tiny are drawn instead, from a generator that
run.lua has too, and of each gradient of such a model the file keeps its norm, eight projections and sixteen elements.
"""
import contextlib
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "data"
SCALE = 1024.0  # of the loss, in every run with autocast
PRIME = 67108859  # below 2^26: squares of what it leaves are exact in float64


def words(count, stream):
    """Numbers 0 .. PRIME - 1 by their positions; run.lua has the same function."""
    h = torch.arange(count, dtype=torch.float64)
    for salt in (12345, 777767, 31337, 5040):
        h = torch.remainder(h + (salt + 7919 * stream), PRIME)
        h = torch.remainder(h * h + salt, PRIME)
    return h


def drawn(name, shape, stream):
    """A weight: uniform with variance 1 / fan_in, about 1 for a norm's scale, about 0 for other vectors."""
    u = words(math.prod(shape), stream) / PRIME * 2 - 1
    if len(shape) > 1:
        u = u * math.sqrt(3 / math.prod(shape[1:]))
    else:
        u = 1 + 0.2 * u if name.endswith("weight") else 0.1 * u
    return u.reshape(shape).float()


def summary(t, stream):
    """Norm, eight projections on random signs, sixteen elements."""
    t = t.detach().double().flatten()
    w, n = words(t.numel(), stream), t.numel()
    signs = [torch.remainder(torch.floor(w / 2**k), 2) * 2 - 1 for k in range(8)]
    return {"norm": t.norm().item(), "projections": [(t * s).sum().item() for s in signs],
            "elements": [t[i * (n - 1) // 15].item() for i in range(16)]}


@contextlib.contextmanager
def exact():
    """Within it nothing narrows to float32: libraries cast to it inside their norms and rotary tables, and PyTorch's
    hardsigmoid and hardswish hold 1 / 6 in it."""
    to, narrow, sigmoid, swish = torch.Tensor.to, torch.Tensor.float, F.hardsigmoid, F.hardswish

    def wide(self, *args, **named):
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if named.get("dtype") is torch.float32:
            named["dtype"] = torch.float64
        return to(self, *args, **named)

    torch.Tensor.to, torch.Tensor.float = wide, lambda self: self.double()
    F.hardsigmoid = lambda x, inplace=False: (x + 3).clamp(0, 6) / 6
    F.hardswish = lambda x, inplace=False: x * (x + 3).clamp(0, 6) / 6
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float, F.hardsigmoid, F.hardswish = to, narrow, sigmoid, swish


# {==== the models: each gives a module, its inputs by name, and how logits come from them ====

def ids(high, *shape):
    return torch.randint(0, high, shape)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0)
    inputs = {"ids": ids(61, 2, 12), "targets": ids(61, 2, 12)}
    return GPT2LMHeadModel(config), inputs, lambda m, i: m(i["ids"], use_cache=False).logits


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
                         num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-6)
    inputs = {"ids": ids(61, 2, 12), "targets": ids(61, 2, 12)}
    return LlamaForCausalLM(config), inputs, lambda m, i: m(i["ids"], use_cache=False).logits


def bert():
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
                        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0  # the second text is shorter
    inputs = {"ids": ids(61, 2, 12), "types": ids(2, 2, 12), "mask": mask, "targets": ids(61, 2, 12)}
    return BertForMaskedLM(config), inputs, lambda m, i: m(i["ids"], i["mask"], i["types"]).logits


def vit():
    from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, image_size=16,
                       patch_size=4, num_labels=7, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    inputs = {"x": torch.randn(3, 3, 16, 16), "targets": ids(7, 3)}
    return ViTForImageClassification(config), inputs, lambda m, i: m(i["x"]).logits


def resnet18():
    from torchvision.models import resnet18 as make
    return make(num_classes=10), {"x": (12, 3, 32, 32), "targets": ids(10, 12)}, lambda m, i: m(i["x"])


def resnet50():
    from torchvision.models import resnet50 as make
    return make(), {"x": (4, 3, 224, 224), "targets": ids(1000, 4)}, lambda m, i: m(i["x"])


def efficientnet_b0():
    from torchvision.models import efficientnet_b0 as make
    module = make(dropout=0.0, stochastic_depth_prob=0.0)
    return module, {"x": (4, 3, 224, 224), "targets": ids(1000, 4)}, lambda m, i: m(i["x"])


class LanguageLSTM(torch.nn.Module):
    """Embedding, two layers of LSTM, a projection: PyTorch's word_language_model."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Embedding(61, 20)
        self.rnn = torch.nn.LSTM(20, 24, 2, batch_first=True)
        self.decoder = torch.nn.Linear(24, 61)

    def forward(self, x):
        return self.decoder(self.rnn(self.encoder(x))[0])


def lstm():
    inputs = {"ids": ids(61, 2, 12), "targets": ids(61, 2, 12)}
    return LanguageLSTM(), inputs, lambda m, i: m(i["ids"])


def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=61, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3, dropout_rate=0,
                      relative_attention_num_buckets=8, relative_attention_max_distance=16, decoder_start_token_id=0)
    inputs = {"ids": ids(61, 2, 14), "decoder": ids(61, 2, 9), "targets": ids(61, 2, 9)}
    return (T5ForConditionalGeneration(config), inputs,
            lambda m, i: m(input_ids=i["ids"], decoder_input_ids=i["decoder"], use_cache=False).logits)


class Whisper(torch.nn.Module):
    """Whisper's encoder, and a head, so that there is a loss."""

    def __init__(self):
        super().__init__()
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder
        self.encoder = WhisperEncoder(WhisperConfig(
            d_model=24, encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=48, num_mel_bins=10,
            max_source_positions=12, dropout=0, attention_dropout=0, activation_dropout=0, encoder_layerdrop=0))
        self.head = torch.nn.Linear(24, 7)

    def forward(self, x):
        return self.head(self.encoder(x).last_hidden_state)


def whisper():
    inputs = {"x": torch.randn(2, 10, 24), "targets": ids(7, 2, 12)}
    return Whisper(), inputs, lambda m, i: m(i["x"])


class UNet(torch.nn.Module):
    """Ronneberger et al. 2015, with padding and batch norm: two levels, joined by concatenation."""

    def __init__(self):
        super().__init__()
        nn = torch.nn

        def double(c, d):
            return nn.Sequential(nn.Conv2d(c, d, 3, padding=1), nn.BatchNorm2d(d), nn.ReLU(),
                                 nn.Conv2d(d, d, 3, padding=1), nn.BatchNorm2d(d), nn.ReLU())
        self.down1, self.down2, self.bottom = double(3, 6), double(6, 8), double(8, 12)
        self.up2, self.join2 = nn.ConvTranspose2d(12, 8, 2, stride=2), double(16, 8)
        self.up1, self.join1 = nn.ConvTranspose2d(8, 6, 2, stride=2), double(12, 6)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([b, self.up2(c)], 1))
        return self.head(self.join1(torch.cat([a, self.up1(b)], 1)))


def unet():
    inputs = {"x": torch.randn(2, 3, 16, 16), "targets": ids(4, 2, 16, 16)}
    return UNet(), inputs, lambda m, i: m(i["x"]).permute(0, 2, 3, 1)


def mobilenet():
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
    rows = [(8, 3, 8, 8, True, "RE", 2, 1), (8, 3, 24, 12, False, "RE", 2, 1), (12, 5, 32, 12, True, "HS", 1, 1)]
    module = MobileNetV3([InvertedResidualConfig(*r, 1.0) for r in rows], 40, num_classes=7, dropout=0)
    inputs = {"x": torch.randn(4, 3, 32, 32), "targets": ids(7, 4)}
    return module, inputs, lambda m, i: m(i["x"])


def efficientnet():
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig
    rows = [(1, 3, 1, 16, 16, 1), (4, 3, 2, 16, 24, 2)]
    module = EfficientNet([MBConvConfig(*r) for r in rows], 0.0, stochastic_depth_prob=0.0, num_classes=7,
                          last_channel=32)
    inputs = {"x": torch.randn(4, 3, 32, 32), "targets": ids(7, 4)}
    return module, inputs, lambda m, i: m(i["x"])


BUILDERS = (gpt2, llama, bert, vit, resnet18, lstm, t5, whisper, unet, mobilenet, efficientnet, resnet50,
            efficientnet_b0)
MODELS = {f.__name__: f for f in BUILDERS}
LARGE = {"resnet18", "resnet50", "efficientnet_b0"}  # drawn, and summed up
WHOLE = {"resnet50", "efficientnet_b0"}  # beside the largest error of PyTorch's float32; its autocast takes long there
# ====}


def run(module, inputs, forward, dtype, autocast=None):
    """Logits, loss and gradients by name, in float64."""
    module = module.to(dtype).train()
    module.zero_grad()
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    # oneDNN has no LSTM in float16 on some processors.
    onednn = torch.backends.mkldnn.flags(enabled=not isinstance(module, LanguageLSTM))
    with onednn, torch.autocast("cpu", autocast) if autocast else exact():
        logits = forward(module, inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), inputs["targets"].flatten())
        scale = SCALE if autocast else 1
        (loss * scale).backward()
    results = {"logits": logits.detach().double(), "loss": loss.detach().double()}
    for name, p in module.named_parameters():
        if p.grad is not None:
            results["grad." + name] = p.grad.double() / scale
    return results


def rotary_exact(module):
    """The rates of rotary positions, which a library keeps in float32, in float64."""
    for m in module.modules():
        if hasattr(m, "inv_freq"):
            half = m.inv_freq.numel()
            m.inv_freq = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)


def make(name):
    torch.manual_seed(1)
    module, inputs, forward = MODELS[name]()
    large = name in LARGE
    names = [k for k, _ in module.named_parameters()]
    with torch.no_grad():
        for k, (key, p) in enumerate(module.named_parameters()):
            if large:
                p.copy_(drawn(key, p.shape, k + 1))
            elif p.dim() == 1:  # biases of 0 and scales of 1 would hide a mistake
                p.add_(torch.randn_like(p) * 0.1)
            else:
                p.mul_(1 if name == "t5" else 3)  # so that attention is not the same everywhere
    shapes = {k: list(p.shape) for k, p in module.named_parameters()}
    weights = {"weight." + k: p.detach().clone() for k, p in module.named_parameters()}
    made = {}
    for k, v in inputs.items():
        if isinstance(v, tuple):
            made[k], inputs[k] = list(v), (words(math.prod(v), 0) / PRIME * 2 - 1).reshape(v).float()
    errors = {}
    start = {k: v.clone() for k, v in module.state_dict().items()}
    for dtype in () if name in WHOLE else (torch.bfloat16, torch.float16):
        module.load_state_dict(start)
        errors[str(dtype)[6:]] = run(module, inputs, forward, torch.float32, dtype)
    single = run(module, inputs, forward, torch.float32) if name in WHOLE else None
    module.double().load_state_dict(start)
    rotary_exact(module)
    truth = run(module, inputs, forward, torch.float64)
    largest = max(v.abs().max().item() for k, v in truth.items() if k.startswith("grad."))
    zero = [k for k, v in truth.items() if v.abs().max().item() < 1e-10 * largest]
    if single:
        single = max(((single[k] - v).norm() / v.norm()).item() for k, v in truth.items() if k not in zero)
        print("PyTorch's float32 is off by", single)
    for dtype, results in errors.items():
        errors[dtype] = {k: ((results[k] - v).norm() / v.norm()).item() for k, v in truth.items() if k not in zero}
    record = {"torch": torch.__version__, "names": names, "shapes": shapes, "drawn": made, "scale": SCALE,
              "large": large, "largest": largest, "zero": zero, "errors": errors, "single": single}
    tensors = {"input." + k: v for k, v in inputs.items() if k not in made}
    if large:
        record["gradients"] = {k: summary(truth["grad." + k], i + 1001) for i, k in enumerate(names)}
        tensors |= {k: truth[k] for k in ("logits", "loss")}
    else:
        tensors |= weights | truth
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, FOLDER / f"{name}.safetensors")
    print(name, sum(math.prod(s) for s in shapes.values()), "parameters; without a gradient:", zero)
    print({d: (f"{sorted(e.values())[len(e) // 2]:.2g}", f"{max(e.values()):.2g}") for d, e in errors.items()})


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        make(chosen)
