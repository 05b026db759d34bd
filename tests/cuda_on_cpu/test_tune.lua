-- test_tune.lua - algorithms of products: what cuBLASLt offers is timed and written to a table, a table is read, each
-- choice in it is checked before it is taken, and a file that is none is refused.
--
-- On the emulated device GIBBOUS_PRODUCT_MS makes the stand-in's first algorithm slow, and the one that wants aligned
-- addresses fast; on a GPU which one is taken is open.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional
local emulated = gb.cuda.properties().name == "emulated on the CPU"
local file = os.tmpname()

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("a")
  f:close()
  return text
end

local function write(text)
  local f = assert(io.open(file, "wb"))
  f:write(text)
  f:close()
end

gb.manual_seed(3)
local x, w, b = gb.randn(24, 16):to("cuda"), gb.randn(32, 16):to("cuda"), gb.randn(32):to("cuda")

-- Products with and without an epilogue, in both dtypes, one that is added to a sum, and a batch.
local function work()
  local results = {}
  for i, dtype in ipairs { "bfloat16", "float32" } do
    local xs, ws = x:clone():to(dtype):requires_grad_(true), w:clone():to(dtype):requires_grad_(true)
    local bs = b:to(dtype)
    local y = F.linear(xs, ws, bs, { activation = "gelu_tanh" })
    y:backward(gb.ones_like(y))
    F.linear(xs, ws, bs):backward(gb.ones_like(y))
    results[i] = { y:detach():cpu(), xs.grad:cpu(), ws.grad:cpu() }
  end
  results[3] = { x:reshape(2, 12, 16):matmul(w:t()):cpu(), x:reshape(4, 6, 16):bmm(x:reshape(4, 16, 6)):cpu() }
  return results
end

local function expect_contains(text, part)
  if not tostring(text):find(part, 1, true) then error(("expected '%s' in: %s"):format(part, text), 0) end
end

-- The same results: to the bit where all algorithms sum alike, as the stand-in's do.
local function expect_same(a, c)
  for i, list in ipairs(a) do
    for j, t in ipairs(list) do
      if emulated then expect(t):to_equal_bits(c[i][j])
      else expect(t):to_be_close(c[i][j], t.dtype == "float32" and 1e-4 or 5e-2) end
    end
  end
end

local plain, table_text = work(), nil
local numbered = "(algorithm=" .. ("%x"):rep(31) .. ")" -- up to the last digit of the stand-in's number

describe("gb.cuda.tune", function()
  it("times the products of a function and writes the faster ones", function()
    local made
    local told = gb.cuda.tune(function() made = work() end, { file = file })
    expect_same(made, plain)
    expect(told.timed > 5):to_be(true)
    expect(told.choices):to_be(told.timed)
    expect(told.after <= told.before):to_be(true)
    table_text = read(file)
    local rows = 0
    for line in table_text:gmatch("[^\n]+") do
      local number = line:match("algorithm=%x+$")
      if number then rows = rows + 1 end
      -- the stand-in's fourth algorithm, which is the fast one; what is not aligned has the third
      if emulated and number then
        expect(number:sub(11 + 16, 11 + 31)):to_be("0000000000000003")
      end
    end
    expect(rows):to_be(told.choices)
    if emulated then expect(told.improved):to_be(told.timed) end
  end)
  it("times products of addresses that are not aligned among what takes them", function()
    if not emulated then return end
    local odd = gb.randn(24 * 16 + 1):to("bfloat16"):to("cuda"):narrow(1, 2, 24 * 16):reshape(24, 16)
    local at = gb.cuda.tuned().choices
    local told = gb.cuda.tune(function() odd:matmul(w:to("bfloat16"):t()) end, { file = file })
    expect(told.timed):to_be(1)
    expect(told.improved):to_be(0)
    expect(told.choices):to_be(at + 1)
    expect(read(file):match("a_align=2 .*$"):match("algorithm=%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x(%x+)"):sub(1, 16)):to_be(
      "0000000000000002")
  end)
  it("does not take part in the sums of the work", function()
    local total = gb.zeros(32, 16, { device = "cuda" })
    local p = w:clone():requires_grad_(true)
    p.grad = total
    gb.cuda.tune(function()
      for _ = 1, 3 do F.linear(x, p):backward(gb.ones(24, 32, { device = "cuda" })) end
    end, { file = file })
    local once = gb.ones(32, 24, { device = "cuda" }):matmul(x)
    expect(p.grad:cpu()):to_be_close((once * 3):cpu(), 1e-4)
  end)
  it("takes a list of layers and leaves the random stream", function()
    local before = gb.get_rng_state()
    local told = gb.cuda.tune({ { 8, 24, 16 }, { 8, 16, 8, dtype = "float32" } }, { file = file, device = 0 })
    expect(told.timed):to_be(6)
    expect(gb.get_rng_state().offset):to_be(before.offset)
  end)
  it("ends with the work", function()
    expect(function() gb.cuda.tune(function() error("stop here") end, { file = file }) end):to_fail("stop here")
    local timed = gb.cuda.tuned().timed
    gb.ones(7, 9, { device = "cuda" }):matmul(gb.ones(9, 5, { device = "cuda" }))
    expect(gb.cuda.tuned().timed):to_be(timed)
  end)
  it("refuses what cannot be", function()
    expect(function() gb.cuda.tune({ { 8, 0, 4 } }, { file = file }) end):to_fail("sizes from 1 on, got 0")
    expect(function() gb.cuda.tune({ { 8, 4 } }, { file = file }) end):to_fail("got less than three")
    expect(function() gb.cuda.tune({ 3 }, { file = file }) end):to_fail("got a number")
    expect(function() gb.cuda.tune(work, { file = "/nowhere/at/all" }) end):to_fail("/nowhere/at/all")
    expect(function() gb.cuda.tune(work, { file = file, device = "cpu" }) end):to_fail("a CUDA device, got 'cpu'")
    expect(function() gb.cuda.tune(work, { file = file, device = 99 }) end):to_fail("99")
    expect(function() gb.cuda.tune(work) end):to_fail("file")
  end)
  it("is refused while a graph is captured, and goes on inside of one that was warmed", function()
    local step = gb.cuda.graph(function(v) return gb.cuda.tune(function() v:matmul(v) end, { file = file }) and v end,
      { gb.ones(4, 4) })
    step(gb.ones(4, 4))
    expect(function() step(gb.ones(4, 4)) end):to_fail("cannot time products while a graph is captured")
    local graph = gb.cuda.graph(function(v) return v:matmul(v) end, { gb.ones(6, 6) })
    local y
    gb.cuda.tune(function() for _ = 1, 3 do y = graph(gb.ones(6, 6)) end end, { file = file })
    expect(y:sum():item()):to_be(216.0)
  end)
end)

describe("gb.cuda.tuned", function()
  it("reads a table, and products take from it", function()
    write(table_text)
    gb.cuda.tuned(file)
    expect(gb.cuda.tuned().taken):to_be(0)
    expect_same(work(), plain)
    expect(gb.cuda.tuned().taken > 5):to_be(true)
    expect(gb.cuda.tuned().refused):to_be(0)
  end)
  it("asks the library of each choice, and does without those that it refuses", function()
    local damaged, count = table_text:gsub("algorithm=%x%x", "algorithm=ee")
    expect(count > 5):to_be(true)
    write(damaged)
    if not emulated then return end -- NVIDIA's check is not to be tried out with bytes that it never made
    gb.cuda.tuned(file)
    expect_same(work(), plain)
    local told = gb.cuda.tuned()
    expect(told.taken):to_be(0)
    expect(told.refused):to_be(count)
    -- one that adds up in the dtype of the result, one that wants more scratch than there is
    for _, number in ipairs { "0", "1" } do
      write((table_text:gsub(numbered .. "%x", "%1" .. number)))
      gb.cuda.tuned(file)
      expect_same(work(), plain)
      expect(gb.cuda.tuned().taken):to_be(0)
    end
    -- one whose kernels would fault at addresses of two bytes
    local odd = gb.randn(24 * 16 + 1):to("bfloat16"):to("cuda"):narrow(1, 2, 24 * 16):reshape(24, 16)
    gb.cuda.tune(function() odd:matmul(w:to("bfloat16"):t()) end, { file = file })
    write((read(file):gsub(numbered .. "2", "%13")))
    gb.cuda.tuned(file)
    odd:matmul(w:to("bfloat16"):t())
    gb.cuda.synchronize()
    expect(gb.cuda.tuned().refused):to_be(1)
  end)
  it("passes over what was measured elsewhere", function()
    local here = gb.cuda.tuned().choices
    for _, change in ipairs { { "library=%d+", "library=99" }, { "compute=%d+%.%d", "compute=1.0" },
      { "multiprocessors=%d+", "multiprocessors=4000" } } do
      local other, count = table_text:gsub(change[1], change[2])
      expect(count):to_be(1)
      write((other:gsub("c_align=%d+", "c_align=64"))) -- rows that are not there yet
      expect(gb.cuda.tuned(file).choices):to_be(here)
    end
    write((table_text:gsub("c_align=%d+", "c_align=64")))
    expect(gb.cuda.tuned(file).choices > here):to_be(true)
    here = gb.cuda.tuned().choices
    write("gibbous products 1\n# nothing was measured\n")
    expect(gb.cuda.tuned(file).choices):to_be(here)
  end)
  it("refuses every table that is none, and changes nothing", function()
    local here, row = gb.cuda.tuned().choices, table_text:match("\n(m=[^\n]+)\n")
    local device = table_text:match("\n(device[^\n]+)\n")
    local head = "gibbous products 1\n" .. device .. "\n"
    local cases = {
      { "", "empty" }, { "gibbous", "cut off" }, { "gibbous products 2\n", "line 1: expects" },
      { "gibbous products 1 \n", "more than it should" },
      { "gibbous products 1\n" .. row .. "\n", "before the first device" }, { head .. row, "cut off" },
      { head .. row:sub(1, -2) .. "\n", "hexadecimal" }, { head .. row .. "0\n", "more than" },
      { head .. row:gsub("m=%d+", "m=0") .. "\n", "line 3: 'm' is 0, expects 1" },
      { head .. row:gsub("m=%d+", "m=99999999999999999999999") .. "\n", "'m' is" },
      { head .. row:gsub("m=%d+", "m=-1") .. "\n", "no whole number" },
      { head .. row:gsub("n=%d+ ", "", 1) .. "\n", "expects 'n'" },
      { head .. row:gsub("operands=%w+", "operands=int64") .. "\n", "no dtype of products" },
      { head .. row:gsub("ldc=%d+", "ldc=1") .. "\n", "longer than the way" },
      { head .. row:gsub("batch=%d+", "batch=40000") .. "\n", "'batch' is 40000" },
      { head .. row:gsub("epilogue=%d+", "epilogue=9") .. "\n", "'epilogue' is 9" },
      { head .. row:gsub("best=%d+%.%d+", "best=nan") .. "\n", "'best' is no whole number" },
      { head .. row:gsub("best=(%d+)%.%d+", "best=%1.5") .. "\n", "three digits" },
      { head .. row:gsub(" m=", "\0m=") .. "\0\n", "more than it should" }, { "\0\0\0\0\n", "expects" },
      { head:gsub("compute=%d+%.%d", "compute=9") .. row .. "\n", "expects '.'" },
      { head .. ("x"):rep(2000) .. "\n", "more than 1024 bytes" },
      { "gibbous products 1\n" .. ("#" .. ("x"):rep(999) .. "\n"):rep(4300), "a table has at most 4194304" },
    }
    for i, case in ipairs(cases) do
      write(case[1])
      local ok, why = pcall(gb.cuda.tuned, file)
      expect(ok):to_be(false)
      expect_contains(i .. ": " .. tostring(why):match("is no table of algorithms: (.*)"), case[2])
      expect(gb.last_error().code):to_be("EFORMAT")
      expect(gb.cuda.tuned().choices):to_be(here)
    end
    local rows = {}
    for i = 1, 4200 do rows[i] = row:gsub("m=%d+", "m=" .. i) end
    write(head .. table.concat(rows, "\n") .. "\n")
    expect(function() gb.cuda.tuned(file) end):to_fail("is no table of algorithms")
    expect(gb.cuda.tuned().choices):to_be(here)
    expect(function() gb.cuda.tuned("/nowhere") end):to_fail("/nowhere")
  end)
  it("outlives every cut and many changes of bytes", function()
    local piece = table_text:match("^[^\n]*\n[^\n]*\n[^\n]*\n")
    for cut = 0, #piece, 7 do
      write(piece:sub(1, cut))
      local ok, told = pcall(gb.cuda.tuned, file)
      expect(ok or tostring(told):find("is no table", 1, true) ~= nil):to_be(true)
    end
    for _ = 1, 150 do
      local at = math.random(#piece)
      write(piece:sub(1, at - 1) .. string.char(math.random(0, 255)) .. piece:sub(at + 1))
      local ok, told = pcall(gb.cuda.tuned, file)
      expect(ok or tostring(told):find("is no table", 1, true) ~= nil):to_be(true)
    end
    if emulated then expect_same(work(), plain) end
  end)
end)

describe("GIBBOUS_CUDA_TUNED", function()
  -- Standard output and error of a program of its own, with the table named from outside.
  local function run(path, code)
    local pipe = assert(io.popen(("GIBBOUS_CUDA_TUNED='%s' '%s' -e '%s' 2>&1"):format(path, arg[-1], code)))
    local text = pipe:read("a")
    pipe:close()
    return text
  end
  local code = [[local gb = require "gibbous"
    local y = gb.ones(2, 2, { device = "cuda" }):matmul(gb.ones(2, 2, { device = "cuda" }))
    print(y:sum():item(), gb.cuda.tuned().choices > 0)]]
  it("names a table from outside", function()
    write(table_text)
    expect_contains(run(file, code), "8.0\ttrue")
  end)
  it("that is no table is an error with its cure", function()
    write("nonsense\n")
    expect_contains(run(file, code), "the file of GIBBOUS_CUDA_TUNED is no table of algorithms: line 1: expects")
    expect_contains(run("/nowhere", code), "names '/nowhere', which cannot be read; unset it")
  end)
end)

describe("the script that fills what is built in", function()
  it("writes the device's lines, and keeps those of others", function()
    local row = table_text:match("\n(m=[^\n]+)\n")
    local function quoted(line) return '"' .. line .. '\\n"\n' end
    local other = "device library=7 compute=8.0 multiprocessors=108"
    local device = table_text:match("\n(device[^\n]+)\n")
    write("/* old */\n" .. quoted(device) .. quoted("gone") .. quoted(other) .. quoted(row))
    local pipe = assert(io.popen(("'%s' tests/cuda/tune.lua '%s' 2 8 16 32 1 4 16 24 2>&1"):format(arg[-1], file)))
    local said = pipe:read("a")
    pipe:close()
    expect_contains(said, "products timed")
    local text, lines = read(file), {}
    expect_contains(text, quoted(other) .. quoted(row))
    expect(text:find("gone", 1, true)):to_be(nil)
    expect_contains(text, "/* cuda/tuned.def")
    for line in text:gmatch('"(.-)\\n"\n') do lines[#lines + 1] = line end
    local here = gb.cuda.tuned().choices
    write("gibbous products 1\n" .. table.concat(lines, "\n") .. "\n")
    expect(gb.cuda.tuned(file).choices > here):to_be(true)
  end)
end)

os.remove(file)
gb.test.finish()
