-- test_args.lua - gb.args: options of a recipe from the command line, and rows or words that are none.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local list = { { "data", "", "a folder" }, { "epochs", 5 }, { "lr", 1e-3 }, { "fast", false }, { "batch_size", 64, "samples per step" } }
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
  it("says a slip on the command line alone, without a traceback, and ends with status 1", function()
    local script, out = os.tmpname(), os.tmpname()
    local file <close> = assert(io.open(script, "w"))
    file:write('gb.args { { "epochs", 5 } }\nprint "not reached"\n')
    file:close()
    local first = -1 -- options of this test's own run may stand before the script
    while arg[first - 1] do first = first - 1 end
    local _, how, code = os.execute(("'%s' '%s' --epoch 3 >'%s' 2>&1"):format(arg[first], script, out))
    local written <close> = assert(io.open(out))
    expect(written:read("a")):to_be(arg[first] .. ": unknown option '--epoch'; did you mean '--epochs'?; --help shows the list\n")
    expect(how .. " " .. code):to_be("exit 1")
    os.remove(script)
    os.remove(out)
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
