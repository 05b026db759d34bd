"""Cases of the fft family: complex numbers as a last dimension of two."""
import torch

from . import case, rand, x0, x1


def parts(z):
    return torch.view_as_real(z)


def number(x):
    return torch.view_as_complex(x.contiguous())


# Lengths by what they are made of: each radix, several, a chirp even and odd, and the shortest.
for n, growth in [(8, 16), (1, 8), (2, 8), (3, 8), (5, 16), (12, 16), (15, 16), (25, 32), (40, 32), (7, 48), (14, 48),
                  (22, 48), (33, 48)]:
    tag = "" if n == 8 else f"of {n}"
    case("rfft", [rand(2, n)], [x0], lambda x: parts(torch.fft.rfft(x)), growth=growth, tag=tag)
    case("irfft", [rand(2, n // 2 + 1, 2)], [x0, n], lambda x, n=n: torch.fft.irfft(number(x), n), growth=growth, tag=tag)
case("rfft", [rand(10, 3)], [x0, 6, 1, {"norm": "ortho"}],
     lambda x: parts(torch.fft.rfft(x, 6, 0, norm="ortho")), growth=16, tag="cut")
case("rfft", [rand(2, 5, 3)], [x0, 9, -2, {"norm": "forward"}],
     lambda x: parts(torch.fft.rfft(x, 9, -2, norm="forward")), growth=16, tag="filled")
case("irfft", [rand(5, 3, 2)], [x0, None, 1, {"norm": "ortho"}],
     lambda x: torch.fft.irfft(number(x), None, 0, norm="ortho"), growth=16, tag="first dim")
case("irfft", [rand(2, 4, 2)], [x0, 9, -2, {"norm": "forward"}],
     lambda x: torch.fft.irfft(number(x), 9, -1, norm="forward"), growth=16, tag="filled")
case("stft", [rand(2, 20), rand(8, low=0.25, high=1)], [x0, 8, 3, 8, x1],
     lambda x, w: parts(torch.stft(x, 8, 3, 8, w, return_complex=True)), growth=48)
case("stft", [rand(21), rand(5, low=0.25, high=1)], [x0, 8, None, 5, x1, {"center": False, "normalized": True}],
     lambda x, w: parts(torch.stft(x, 8, None, 5, w, center=False, normalized=True, return_complex=True)), growth=48,
     tag="narrow window")
case("stft", [rand(16)], [x0, 7, 4, {"pad_mode": "constant", "onesided": False}],
     lambda x: parts(torch.stft(x, 7, 4, pad_mode="constant", onesided=False, window=torch.ones(7, dtype=x.dtype),
                                return_complex=True)), growth=48, tag="both sides")
case("istft", [rand(2, 5, 6, 2), rand(8, low=0.5, high=1)], [x0, 8, 3, 8, x1],
     lambda x, w: torch.istft(number(x), 8, 3, 8, w), growth=64)
case("istft", [rand(5, 6, 2)], [x0, 8, 2, {"center": False, "normalized": True, "length": 25}],
     lambda x: torch.istft(number(x), 8, 2, center=False, normalized=True, length=25,
                           window=torch.ones(8, dtype=x.dtype)), growth=64, tag="longer")
case("istft", [rand(8, 5, 2)], [x0, 8, 4, {"onesided": False}],
     lambda x: torch.istft(number(torch.cat([x[:5], torch.stack([x[1:4, :, 0], -x[1:4, :, 1]], -1).flip(0)])), 8, 4,
                           onesided=False, window=torch.ones(8, dtype=x.dtype)), growth=64, tag="both sides")
