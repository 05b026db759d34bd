-- test_arrays.lua - files of NumPy: read against what NumPy wrote (tests/golden/arrays.py), written and read again, and
-- turned down where they are damaged or hold what must not be loaded.

local gb = require "gibbous"
gb.set_default_device("cpu") -- files are read into host memory
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local goldens = dofile("tests/lua/goldens.lua")
local npy, npz = gb.data.npy, gb.data.npz

local path = os.tmpname()

local function write(text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
  return path
end

local function read(from)
  local file <close> = assert(io.open(from, "rb"))
  return file:read("a")
end

local rows = goldens.read("data", { "arrays" })

-- Is a tensor what a line says, of long ones the beginning?
local function expect_row(got, row)
  local want = goldens.tensor(row.tensor)
  expect(got.dtype):to_be(want.dtype)
  if #got.shape > 0 and got.shape[1] > 200 then got = got:narrow(1, 1, 200) end
  expect(table.concat(got.shape, "x")):to_be(table.concat(want.shape, "x"))
  expect(got:is_contiguous()):to_be(true)
  expect(got):to_equal_bits(want)
end

describe("arrays that NumPy wrote", function()
  for _, file in ipairs { "tests/golden/data/arrays.npz", "tests/golden/data/arrays.zip" } do
    local tensors = npz(file)
    for _, row in ipairs(rows) do
      if not row.npy then
        it(("'%s' of %s"):format(row.name, file), function() expect_row(tensors[row.name], row) end)
      end
    end
    it("are all that " .. file .. " gives", function()
      expect(tensors["notes.txt"]):to_be(nil)
      expect(tensors.long:numel()):to_be(40000)
      expect(tensors.long:max():item()):to_be(6)
    end)
  end
  for _, row in ipairs(rows) do
    if row.npy then
      it("'" .. row.name .. "' as a file of its own", function()
        write((row.npy:gsub("..", function(hex) return string.char(tonumber(hex, 16)) end)))
        if row.said then expect(function() npy(path) end):to_fail(row.said)
        else expect(npy(path)):to_equal_bits(npz("tests/golden/data/arrays.npz").vector) end
      end)
    end
  end
end)

describe("arrays that are written", function()
  local tensors = {
    half = gb.tensor({ 1.5, -2 }, { dtype = "float16" }), float = gb.rand(3, 1, 4), double = gb.rand(2, 2):double(),
    long = gb.tensor { -5, 1 << 62 }, int = gb.arange(5):int(), byte = gb.tensor({ 0, 255 }, { dtype = "uint8" }),
    small = gb.tensor({ -1 }, { dtype = "int8" }), short = gb.tensor({ -300 }, { dtype = "int16" }),
    bool = gb.tensor { true, false }, scalar = gb.tensor(3), empty = gb.zeros(0, 2), ["a/b \u{e9}"] = gb.ones(1),
    turned = gb.rand(3, 5):t(), expanded = gb.ones(1, 2):expand(3, 2),
  }
  it("come back bit for bit, alone and together", function()
    gb.io.save_npz(path, tensors)
    local all, count = npz(path), 0
    for name, t in pairs(tensors) do
      count = count + 1
      expect(all[name].dtype):to_be(t.dtype)
      expect(all[name]):to_equal_bits(t:contiguous())
      gb.io.save_npy(path, t)
      expect(npy(path)):to_equal_bits(t:contiguous())
    end
    local found = 0
    for _ in pairs(all) do found = found + 1 end
    expect(found):to_be(count)
    gb.io.save_npz(path, {})
    expect(next(npz(path))):to_be(nil)
  end)
  it("are the same bytes each time, and end a header at 64 bytes", function()
    gb.io.save_npz(path, tensors)
    local first = read(path)
    gb.io.save_npz(path, tensors)
    expect(read(path) == first):to_be(true)
    gb.io.save_npy(path, gb.ones(2, 3))
    local text = read(path)
    expect(#text):to_be(128 + 24)
    expect(text:sub(11, 69)):to_be("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }")
  end)
  it("are refused where NumPy has no such thing, and leave the old file as it was", function()
    gb.io.save_npy(path, gb.ones(1))
    expect(function() gb.io.save_npy(path, gb.ones(2):bfloat16()) end):to_fail("NumPy has no bfloat16")
    expect(function() gb.io.save_npz(path, { a = gb.ones(1), b = gb.ones(2):bfloat16() }) end):to_fail(":float()")
    expect(function() gb.io.save_npz(path, { gb.ones(1) }) end):to_fail("by name")
    expect(function() gb.io.save_npz(path, { a = 5 }) end):to_fail("by name")
    expect(function() gb.io.save_npz(path, { ["a\0b"] = gb.ones(1) }) end):to_fail("zero byte")
    expect(function() gb.io.save_npz(path, { [""] = gb.ones(1) }) end):to_fail("a name has 1 to")
    expect(npy(path):item()):to_be(1.0)
  end)
end)

describe("a file that is damaged", function()
  gb.io.save_npy(path, gb.arange(6):float():reshape(2, 3))
  local good = read(path)
  local function header(text, body, length)
    return "\x93NUMPY\1\0" .. string.pack("<I2", length or #text) .. text .. (body or "")
  end
  local function dict(descr, order, shape)
    return ("{'descr': %s, 'fortran_order': %s, 'shape': %s, }"):format(descr, order, shape)
  end
  local function fails(text, said) expect(function() npy(write(text)) end):to_fail(said) end
  it("is named, with what is wrong and a cure", function()
    fails("", path .. "': it ends at byte 0")
    fails("\x93NUMPX\1\0\0\0", "no .npy file")
    fails("\x93NUMPY\4\0\0\0", "version 4.0")
    fails(good:sub(1, -2), "claims 24 bytes of elements, and 23 are there")
    fails(good .. "x", "claims 24 bytes of elements, and 25 are there")
    fails(header("{}", "", 500), "ends at byte 12")
    fails("\x93NUMPY\2\0\255\255\255\127", "claims 2147483647 bytes")
    fails(header(""), "no dict")
    fails(header("{'descr': '<f4', }"), "no 'fortran_order'")
    fails(header(dict("'<f4'", "False", "(1,)") .. "x", "1234"), "behind its header")
    fails(header("{'descr': '<f4', 'descr': '<f4', }"), "damaged at byte")
    fails(header("{'more': 1}"), "damaged at byte")
    fails(header(dict("'<f4'", "Maybe", "(1,)"), "1234"), "neither True nor False")
    fails(header(dict("'<f4'", "False", "(-1,)"), "1234"), "no tuple of sizes")
    fails(header(dict("'<f4'", "False", "[1]"), "1234"), "no tuple")
    fails(header(dict("'<f4'", "False", "(1"), "1234"), "shape in its header")
    fails(header(dict("'<f4'", "False", "(999999999999999999,)"), "1234"), "claims 3999999999999999996 bytes")
    fails(header(dict("'<f4'", "False", "(999999999, 999999999, 999999999)"), "1234"), "claims more than")
    fails(header(dict("'?'", "False", "(1,)"), "1"), "dtype '?'")
    fails(header(dict("''", "False", "(1,)"), "1"), "dtype ''")
    fails(header(dict("[('a', '<f4')]", "False", "(1,)"), "1"), "structures")
    fails(header(dict("'|b1'", "False", "(2,)"), "\1\2"), "element 2 is no boolean but the byte 2")
    fails(header("{'descr': '<f4'\0}"), "zero byte")
  end)
  it("is refused before memory is taken for what it claims", function()
    fails(header(dict("'<f8'", "False", "(1000000, 100000)"), "12345678"), "claims 800000000000 bytes")
  end)
end)

describe("an archive that is damaged", function()
  local good = read("tests/golden/data/arrays.npz")
  local stored = read("tests/golden/data/arrays.zip")
  local function fails(text, said) expect(function() npz(write(text)) end):to_fail(said) end
  it("is named, with what is wrong and a cure", function()
    fails("", "no zip archive")
    fails(good:sub(1, -2), "no zip archive")
    fails(good:sub(1, 5000), "no zip archive")
    fails("PK\5\6" .. ("\0"):rep(18) .. "x", "no zip archive")
    fails("x" .. good, "damaged")
    fails(good:sub(2), "damaged")
    local at = stored:find("\x93NUMPY", 1, true)
    fails(stored:sub(1, at + 130) .. "\255" .. stored:sub(at + 132), "check sum is another")
    fails(stored:sub(1, at) .. "X" .. stored:sub(at + 2), "no .npy file")
    expect(function() npz("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() npz("tests") end):to_fail("tests")
  end)
  it("in an entry of its directory", function()
    gb.io.save_npz(path, { a = gb.arange(100):float() })
    local small = read(path)
    local entry = small:find("PK\1\2", 1, true)
    local function put(offset, format, value)
      local text = string.pack(format, value)
      return small:sub(1, entry + offset - 1) .. text .. small:sub(entry + offset + #text)
    end
    fails(put(8, "<I2", 1), "encrypted")
    fails(put(10, "<I2", 9), "neither \"stored\" nor \"deflate\"")
    fails(put(10, "<I2", 8), "member 'a.npy'")
    fails(put(24, "<I4", 1 << 20), "cannot unpack to as many bytes")
    fails(put(20, "<I4", 0xffffffff), "zip64")
    fails(put(42, "<I4", 0xfffffff0), "behind the file's end")
    fails(put(42, "<I4", 3), "no member begins here")
    fails(put(16, "<I4", 12345), "check sum")
    fails(put(28, "<I2", 500), "too long")
  end)
end)

os.remove(path)
gb.test.finish()
