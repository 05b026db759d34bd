#!/usr/bin/env python3
"""Golden files for reading images: small JPEG and PNG files of every kind, and their pixels as Pillow reads them.

Usage: python tests/golden/images.py   (needs Pillow and numpy; writes tests/golden/images/)

pixels.jsonl has a line for each file: its name, shape, and the bytes (hexadecimal) of convert("RGB") and convert("L")
after ImageOps.exif_transpose.
"""
import io
import json
import pathlib
import struct
import zlib

import numpy
from PIL import Image, ImageOps

FOLDER = pathlib.Path(__file__).parent / "images"
rng = numpy.random.default_rng(5)


def picture(height, width, channels):
    """Smooth with some noise, so that JPEG has something to do."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [128 + 90 * numpy.sin(x / (3 + c) + y / (5 - c)) for c in range(channels)]
    noise = rng.integers(-25, 26, (height, width, channels))
    return numpy.clip(numpy.stack(planes, -1) + noise, 0, 255).astype(numpy.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows, interlace=0, extra=b""):
    """A PNG of rows that are packed already: Pillow writes no interlaced files, and no 16-bit colours."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
            + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b""))


def adam7(array):
    """The rows of an interlaced file, pass by pass."""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                           (1, 0, 2, 1)):
        part = array[y0::dy, x0::dx]
        for row in part if part.size else []:
            yield row.tobytes()


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def files():
    rgb, gray = Image.fromarray(picture(13, 19, 3)), Image.fromarray(picture(13, 19, 1)[..., 0])
    cmyk = Image.fromarray(picture(13, 19, 4), "CMYK")
    for quality, subsampling in ((90, 0), (75, 1), (40, 2)):
        yield f"baseline_{subsampling}.jpg", saved(rgb, "JPEG", quality=quality, subsampling=subsampling)
    yield "progressive.jpg", saved(rgb, "JPEG", progressive=True)
    yield "optimised.jpg", saved(rgb, "JPEG", optimize=True, restart_marker_blocks=2)
    yield "gray.jpg", saved(gray, "JPEG")
    yield "rgb.jpg", saved(rgb, "JPEG", keep_rgb=True)
    yield "cmyk.jpg", saved(cmyk, "JPEG")
    yield "cmyk_progressive.jpg", saved(cmyk, "JPEG", progressive=True)
    # the same numbers said to be YCCK: Adobe's marker with transform 2
    yield "ycck.jpg", saved(cmyk, "JPEG").replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2")
    for orientation in range(1, 9):
        yield f"turned_{orientation}.jpg", saved(rgb, "JPEG", exif=turned(orientation))
    yield "turned.png", saved(rgb, "PNG", exif=turned(6))
    yield "rgb.png", saved(rgb, "PNG")
    yield "rgba.png", saved(Image.fromarray(picture(5, 7, 4)), "PNG")
    yield "gray.png", saved(gray, "PNG")
    yield "gray_alpha.png", saved(Image.fromarray(picture(5, 7, 2), "LA"), "PNG")
    yield "bits.png", saved(gray.convert("1"), "PNG")
    for colours in (2, 4, 16, 100):
        yield f"palette_{colours}.png", saved(rgb.quantize(colours), "PNG")
    yield "palette_transparent.png", saved(rgb.quantize(8), "PNG", transparency=3)
    yield "rgb_transparent.png", saved(rgb, "PNG", transparency=(10, 20, 30))
    yield "gray_transparent.png", saved(gray, "PNG", transparency=7)
    sixteen = {c: rng.integers(0, 65536, (6, 9, c)).astype(">u2") for c in (1, 2, 3, 4)}
    sixteen[1][:3] //= 200
    for channels, colour in ((1, 0), (2, 4), (3, 2), (4, 6)):
        rows = [row.tobytes() for row in sixteen[channels]]
        yield f"sixteen_{channels}.png", png(9, 6, 16, colour, rows)
    for name, channels, colour in (("gray", 1, 0), ("rgb", 3, 2), ("rgba", 4, 6)):
        yield f"interlaced_{name}.png", png(19, 13, 8, colour, adam7(picture(13, 19, channels)), 1)
    yield "interlaced_16.png", png(9, 6, 16, 2, adam7(sixteen[3]), 1)
    yield "interlaced_palette.png", png(19, 13, 8, 3, adam7(picture(13, 19, 1) // 16), 1,
                                        chunk(b"PLTE", bytes(range(48))))
    for depth in (2, 4):
        yield f"gray_{depth}_bits.png", png(8, 3, depth, 0, [rng.bytes(depth) for _ in range(3)])


def main():
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / "pixels.jsonl", "w", encoding="utf-8") as out:
        for name, data in files():
            (FOLDER / name).write_bytes(data)
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
            row = {"name": name, "width": image.width, "height": image.height,
                   "rgb": image.convert("RGB").tobytes().hex(), "gray": image.convert("L").tobytes().hex()}
            print(json.dumps(row), file=out)


main()
