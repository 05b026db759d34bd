-- test_args.lua - gb.args: options of a recipe from the command line, and rows or words that are none.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local list = { { "data", "", "a folder" }, { "epochs", 5 }, { "lr", 1e-3 }, { "fast", false },
  { "batch_size", 64, "samples per step" } }
local function args(...) return gb.args(list, { ... }) end

describe("gb.args", function()
  it("gives the defaults, in their types", function()
    local a = args()
    expect(a.data):to_be("")
    expect(math.type(a.epochs)):to_be("integer")
    expect(a.lr):to_be(1e-3)
    expect(a.fast):to_be(false)
  end)
  it("reads --name value, --name=value, --name and --no-name", function()
    local a = args("--data", "here", "--epochs=7", "--lr", "2", "--fast", "--batch-size", "8")
    expect(a.data):to_be("here")
    expect(a.epochs):to_be(7)
    expect(math.type(a.lr)):to_be("float")
    expect(a.fast):to_be(true)
    expect(a.batch_size):to_be(8)
    expect(args("--fast", "--no-fast").fast):to_be(false)
    expect(args("--fast", "false").fast):to_be(false)
    expect(args("--epochs", "1e1").epochs):to_be(10)
    expect(args("--data=a=b").data):to_be("a=b")
    expect(args("--epochs", "-3").epochs):to_be(-3)
  end)
  it("refuses words that do not fit, and names the nearest", function()
    expect(function() args("--epoch", "3") end):to_fail("did you mean '--epochs'?")
    expect(function() args("epochs") end):to_fail("unknown option 'epochs'")
    expect(function() args("--epochs") end):to_fail("--epochs needs a value")
    expect(function() args("--epochs", "1.5") end):to_fail("a whole number, got '1.5'")
    expect(function() args("--epochs", "x") end):to_fail("a whole number")
    expect(function() args("--lr", "fast") end):to_fail("a number, got 'fast'")
    expect(function() args("--fast=maybe") end):to_fail("true or false")
  end)
  it("refuses numbers below the least of a row, which --help shows", function()
    local rows = { { "layers", 4, "blocks", least = 1 }, { "clip", 1.0, least = 0 }, { "seed", 1 } }
    local function run(...) return gb.args(rows, { ... }) end
    expect(run("--layers", "1", "--clip", "0", "--seed", "-1").layers):to_be(1)
    expect(function() run("--layers", "0") end):to_fail("--layers is at least 1, got 0")
    expect(function() run("--layers=-1") end):to_fail("--layers is at least 1, got -1")
    expect(function() run("--clip", "-0.5") end):to_fail("--clip is at least 0, got -0.5")
    local script, out = os.tmpname(), os.tmpname()
    local file <close> = assert(io.open(script, "w"))
    file:write('gb.args { { "layers", 4, "blocks", least = 1 } }\n')
    file:close()
    os.execute(("'%s' '%s' --help >'%s' 2>&1"):format(gb.test.program(), script, out))
    local written <close> = assert(io.open(out))
    expect(written:read("a"):find("blocks (default 4, at least 1)", 1, true) ~= nil):to_be(true)
    os.remove(script)
    os.remove(out)
    for _, row in ipairs { { "a", 1, least = "1" }, { "a", "b", least = 1 }, { "a", 0, least = 1 } } do
      expect(function() gb.args({ row }, {}) end):to_fail("row 1: least is a number")
    end
  end)
  it("says a slip on the command line alone, without a traceback, and ends with status 1", function()
    local script, out = os.tmpname(), os.tmpname()
    local file <close> = assert(io.open(script, "w"))
    file:write('gb.args { { "epochs", 5 } }\nprint "not reached"\n')
    file:close()
    local _, how, code = os.execute(("'%s' '%s' --epoch 3 >'%s' 2>&1"):format(gb.test.program(), script, out))
    local written <close> = assert(io.open(out))
    expect(written:read("a")):to_be(gb.test.program() .. ": unknown option '--epoch'; did you mean '--epochs'?; \z
      --help shows the list\n")
    expect(how .. " " .. code):to_be("exit 1")
    os.remove(script)
    os.remove(out)
  end)
  it("tries at once whether a file can be written, and leaves one that is there alone", function()
    local path = os.tmpname()
    local rows = { { "out", path, writes = true } }
    local file <close> = assert(io.open(path, "w"))
    file:write("kept")
    file:close()
    expect(gb.args(rows, {}).out):to_be(path)
    local kept <close> = assert(io.open(path))
    expect(kept:read("a")):to_be("kept")
    os.remove(path)
    expect(gb.args(rows, { "--out=" }).out):to_be("")
    expect(gb.args(rows, {}).out):to_be(path)
    for _, name in ipairs { path, path .. ".tmp" } do expect(io.open(name)):to_be(nil) end
    local ok, slip = pcall(gb.args, rows, { "--out", path .. "/missing" })
    expect(ok):to_be(false)
    expect(tostring(slip):find("--out: cannot write '" .. path .. "/missing", 1, true)):to_be(1)
    expect(function() gb.args({ { "steps", 1, writes = true } }, {}) end):to_fail("row 1: writes is for names of files")
  end)
  it("says what a needed option is where it is missing", function()
    local rows = { { "data", "", "a folder", needed = true }, { "out", "", writes = true } }
    expect(gb.args(rows, { "--data", "x" }).data):to_be("x")
    for _, from in ipairs { {}, { "--data=" } } do
      local ok, slip = pcall(gb.args, rows, from)
      expect(ok):to_be(false)
      expect(tostring(slip)):to_be("--data is missing: a folder; --help shows the list")
    end
    expect(function() gb.args({ { "data", "x", needed = true } }, {}) end):to_fail("row 1: what is needed has the \z
      default \"\"")
  end)
  it("refuses rows that are none, with their position", function()
    local function rows(...)
      local given = { ... }
      return function() gb.args(given, {}) end
    end
    local good = { "a", 1 }
    expect(rows(good, 5)):to_fail("row 2")
    expect(rows("data")):to_fail("row 1")
    expect(rows {}):to_fail("row 1")
    expect(rows { "a" }):to_fail("row 1")
    expect(rows { 5, 5 }):to_fail("row 1")
    expect(rows(good, good, { "b", {} })):to_fail("row 3")
    expect(rows { "b", print }):to_fail("a string, a number or a boolean")
    expect(rows { "b", nil, "help" }):to_fail("row 1")
    expect(function() gb.args() end):to_fail("list")
    expect(function() gb.args("data") end):to_fail("list")
  end)
end)

gb.test.finish()
