-- test_progress.lua - gb.progress: on a terminal one line that is drawn at most ten times a second; elsewhere plain
-- lines, one an interval, without carriage returns or escapes.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local script = os.tmpname()

-- What a program with a bar writes, both streams together; around: a command with %s in the place of its own.
local function written(text, around)
  local file <close> = assert(io.open(script, "wb"))
  file:write('local gb = require "gibbous"\n', text)
  file:close()
  local command = ("'%s' '%s' 2>&1"):format(gb.test.program(), script)
  local pipe <close> = assert(io.popen((around or "%s"):format(command)))
  return pipe:read("a")
end

local BUSY = [[
  local bar = gb.progress(1e9 // 1, "epoch 1", { interval = %s })
  local started = gb.clock()
  while gb.clock() - started < 0.45 do bar:update(1, { loss = 0.5 }) end
  bar:close("accuracy 98.5 %%")
]]

describe("where nobody looks on", function()
  it("there are plain lines, one an interval, and no carriage returns", function()
    local text = written(BUSY:format("0.1"))
    expect(text:find("[\r\27]")):to_be(nil)
    local lines = select(2, text:gsub("\n", ""))
    expect(lines >= 3 and lines <= 6):to_be(true)
    expect(text:find("^epoch 1 %d+/1000000000  loss 0%.5  ") ~= nil):to_be(true)
    expect(text:find("epoch 1  accuracy 98%.5 %% in 0:00\n$") ~= nil):to_be(true)
  end)
  it("what is not a number is nan, of whatever sign", function()
    local text = written([[local bar = gb.progress(2, "epoch 1", { interval = 0.0 })
      bar:update(1, { loss = 0 / 0 }) bar:update(1, { loss = -(0 / 0) }) bar:close()]])
    expect(select(2, text:gsub("  loss nan  ", ""))):to_be(2)
  end)
  it("there is only the last line where the interval is long", function()
    expect(written(BUSY:format("10"))):to_be("epoch 1  accuracy 98.5 % in 0:00\n")
  end)
end)

describe("throughput", function()
  it("is of the last steps", function()
    local speed, values = gb.throughput({ window = 3 }), {}
    local function wait()
      local ends = gb.clock() + 0.01
      while gb.clock() < ends do end
    end
    expect(speed(1e9)):to_be(nil) -- the time before the first step is not known
    for i = 1, 6 do
      wait()
      values[i] = speed(i < 4 and 1000 or 0)
    end
    expect(values[1] > 0 and values[1] <= 1e5 and values[5] > 0 and values[5] < values[3]):to_be(true)
    expect(values[6]):to_be(nil)
    expect(function() speed("many") end):to_fail("throughput: the samples of a step are a number, got a string")
  end)
end)

describe("on a terminal", function()
  it("one line is drawn at most ten times a second", function()
    if not os.execute("command -v script >/dev/null") then return print("skipped: there is no script(1)") end
    local text = written(BUSY:format("10"), 'script -qec "%s" /dev/null </dev/null')
    local drawn = select(2, text:gsub("\r\27%[%?7l", ""))
    expect(drawn >= 2 and drawn <= 5):to_be(true)
    expect(text:find("%[%.+%] epoch 1 %d+/1000000000  loss 0%.5") ~= nil):to_be(true)
    expect(text:find("\r\27%[Kepoch 1  accuracy 98%.5 %% in 0:00\r?\n") ~= nil):to_be(true)
  end)
end)

os.remove(script)
gb.test.finish()
