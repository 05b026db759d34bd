"""midi.py - midi.py FILE: reads a Standard MIDI File byte by byte and prints what each track holds; an error where the
file is none. It is what recipes/chorales.lua writes, read by somebody else."""

import struct
import sys


def events(body):
    """The events of a track as (time, status, data); running status and meta events included."""
    at, now, status = 0, 0, 0

    def variable():
        nonlocal at
        value = 0
        while True:
            byte = body[at]
            at += 1
            value = value << 7 | byte & 127
            if byte < 128:
                return value

    while at < len(body):
        now += variable()
        if body[at] & 0x80:
            status = body[at]
            at += 1
        if status == 0xFF:
            kind = body[at]
            at += 1
            length = variable()
            yield now, 0xFF00 | kind, body[at:at + length]
        else:
            length = 1 if status >> 4 in (0xC, 0xD) else 2
            yield now, status, body[at:at + length]
        at += length


def main(path):
    with open(path, "rb") as file:
        text = file.read()
    tag, size, form, count, division = struct.unpack(">4sIHHH", text[:14])
    assert tag == b"MThd" and size == 6, "no MIDI file"
    print(f"{path}: format {form}, {count} tracks, {division} ticks a quarter")
    at = 14
    for number in range(1, count + 1):
        tag, size = struct.unpack(">4sI", text[at:at + 8])
        assert tag == b"MTrk", f"track {number} is none"
        sounding, notes, ended, last = set(), [], False, 0
        for time, status, data in events(text[at + 8:at + 8 + size]):
            assert not ended, "events behind the end"
            last, ended = time, status == 0xFF2F
            if status >> 4 == 9 and data[1] > 0:
                assert data[0] not in sounding, f"note {data[0]} begins twice"
                sounding.add(data[0])
                notes.append(data[0])
            elif status >> 4 in (8, 9):
                sounding.remove(data[0])
        assert ended and not sounding, f"track {number} does not end"
        span = f"{min(notes)} to {max(notes)}" if notes else "none"
        print(f"track {number}: {len(notes)} notes, {span}, {last / division:g} quarters")
        at += 8 + size
    assert at == len(text), "bytes behind the last track"


if __name__ == "__main__":
    main(sys.argv[1])
