-- test_options.lua - the options of gibbous's own, and that the man page and the completions know every option of the
-- table that --help shows.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local gibbous = gb.test.program()

-- What a command writes, on both streams, and its status.
local function run(arguments)
  local pipe = assert(io.popen(("'%s' %s 2>&1; echo \"status $?\""):format(gibbous, arguments)))
  local text = pipe:read("a")
  pipe:close()
  local out, status = text:match("^(.*)status (%d+)\n$")
  return out, tonumber(status)
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("a")
  file:close()
  return text
end

-- Running gibbous writes `text` and ends with `status`.
local function expect_run(arguments, text, status)
  it(arguments, function()
    local out, got = run(arguments)
    if not out:find(text, 1, true) then error(("expected '%s' in:\n%s"):format(text, out), 0) end
    expect(got):to_be(status)
  end)
end

describe("documents", function()
  local list, options = run("--help"), {}
  for line in list:gmatch("[^\n]+") do options[#options + 1] = line:match("^  (%-[%-%a]*)") end

  it("the list has the options of lua and ours", function()
    expect(#options):to_be(19)
  end)

  it("the man page has each", function()
    local page = read("doc/gibbous.1"):gsub("\\%-", "-")
    for _, option in ipairs(options) do
      if not (page:find("\n.B " .. option .. "\n", 1, true) or page:find("\n.BI " .. option .. " ", 1, true)) then
        error(option .. " is missing", 0)
      end
    end
  end)

  it("so have the completions", function()
    local bash, zsh = read("doc/gibbous.bash"), read("doc/_gibbous")
    for _, option in ipairs(options) do
      if not bash:find("[\" ]" .. option:gsub("%-", "%%-") .. "[ \"]") then
        error(option .. " is missing for bash", 0)
      end
      if option:find("%a") and not zsh:find("'%*?" .. option:gsub("%-", "%%-") .. "%[") then
        error(option .. " is missing for zsh", 0)
      end
    end
    for option in zsh:gmatch("'%*?(%-[%-%a]+)%[") do
      local known = false
      for _, name in ipairs(options) do known = known or name == option end
      if not known then error(option .. " is no option any more", 0) end
    end
  end)
end)

describe("bad options of ours", function()
  expect_run("--thread 2", "unrecognized option '--thread'; did you mean '--threads'?", 1)
  expect_run("--threads", "a value is missing after '--threads'", 1)
  expect_run("--threads x -e ''", "--threads takes a number of threads, 1 .. 1024, not 'x'", 1)
  expect_run("--threads 0 -e ''", "--threads takes a number of threads", 1)
  expect_run("--memory 10Q -e ''", "--memory takes a number of bytes", 1)
  expect_run("--memory -1 -e ''", "--memory takes a number of bytes", 1)
  expect_run("--time nan -e ''", "--time takes a number of seconds above 0", 1)
  expect_run("--help=yes", "no value is taken by '--help=yes'", 1)
  expect_run("--json", "without --doctor", 1)
  expect_run("--device gpu -e ''", "unknown device 'gpu'", 1)
end)

describe("options of ours", function()
  expect_run("--version", "Gibbous " .. gb.version .. ", Lua 5.4", 0)
  expect_run("--recipes", "recipes/char_gpt.lua\n    a small GPT", 0)
  expect_run("--threads=1 -e 'print(gb.get_num_threads())'", "1\n", 0)
  expect_run("--threads 3 -e 'print(gb.get_num_threads())'", "3\n", 0)
  expect_run("--device cpu -e 'print(gb.ones(1).device)'", "cpu\n", 0)
  expect_run("-e 'print(arg[1], arg[-1])' --threads 2 nothere.lua one", "one\t2\n", 1)
  expect_run("--memory 64M -e 'gb.zeros(1 << 20):sum() print(\"fits\")'", "fits\n", 0)
  expect_run("--memory 4M -e 'gb.zeros(1 << 21)'", "out of memory", 1)
  expect_run("--memory 8M -e 'local t = {} for i = 1, 1e7 do t[i] = {} end'", "the limit of Lua bytes was reached", 1)
  expect_run("--memory 8M -e 'while true do pcall(function() local t = {} for i = 1, 1e7 do t[i] = {} end end) end'",
    "the limit of Lua bytes was reached", 1)
  expect_run("--time 0.2 -e 'while true do pcall(function() while true do end end) end'",
    "the limit of 0.2 seconds was reached", 1)
end)

describe("a sandbox", function()
  local script = os.tmpname()
  local file = assert(io.open(script, "w"))
  assert(file:write("#!/usr/bin/env gibbous\nprint(arg[0] ~= nil, arg[1], arg[-1], x, gb.ones(3):sum():item())\n"))
  file:close()
  expect_run("--sandbox -e 'x = 7' " .. script .. " one", "true\tone\t" .. "x = 7\t7\t3.0\n", 0)
  expect_run("--sandbox - one <" .. script, "true\tone\t--sandbox\tnil\t3.0\n", 0)
  expect_run("--sandbox -e 'print(io, os.execute, debug, package)'", "nil\tnil\t", 0)
  expect_run("--sandbox -e 'os.execute()'", "attempt to call a nil value (field 'execute')", 1)
  expect_run("--sandbox --time 0.2 -e 'while true do pcall(function() while true do end end) end'",
    "the limit of 0.2 seconds was reached", 1)
  expect_run("--sandbox --memory 16M -e 'gb.zeros(1 << 24)'", "tensor", 1)
  expect_run("--memory 64M -e \"pcall(string.rep, 'x', 1e8) print('went on')\"", "the limit of Lua bytes was reached",
    1)
  -- few instructions, and late
  expect_run("--time 0.001 -e \"local s = ('x'):rep(1 << 26)\"", "the limit of 0.001 seconds was reached", 1)
  expect_run("--time 0.1 -e 'local x = gb.ones(1, 1) x:expand(3000, 20000):matmul(x:expand(20000, 3000))'",
    "the limit of 0.1 seconds was reached: ", 1)
  expect_run("--sandbox --device gpu -e ''", "unknown device 'gpu'", 1)
  expect_run("--sandbox -l string", "-l does not go with --sandbox", 1)
  expect_run("--sandbox -i", "-i does not go with --sandbox", 1)
  expect_run("--sandbox -W -e 'warn(\"a\", 5)'", "Lua warning: a5\n", 0)
  expect_run("--sandbox -e 'warn(\"a\") warn(\"@on\") warn(\"b\") warn(\"@off\") warn(\"c\") print(1)'",
    "Lua warning: b\n1\n", 0)
  expect_run("--sandbox -W -e 'warn({})'", "string expected, got table", 1)
  expect_run("--sandbox -- - <" .. script, "cannot open -", 1)
  it("refuses standard input with a zero byte", function()
    local path = os.tmpname()
    local input = assert(io.open(path, "w"))
    assert(input:write("print('ran')\0 print('hidden')"))
    input:close()
    local out, status = run("--sandbox - <" .. path)
    os.remove(path)
    expect(out:find("holds a zero byte", 1, true)):to_be_truthy()
    expect(out:find("ran", 1, true)):to_be(nil)
    expect(status):to_be(1)
  end)
  expect_run("--sandbox nothere.lua", "nothere.lua", 1)
  os.remove(script)
end)

describe("the doctor", function()
  it("says what it found, line by line", function()
    local out, status = run("--doctor")
    for _, subject in ipairs { "cpu", "float16", "bfloat16", "threads", "memory", "oneDNN", "CUDA driver" } do
      expect(out:find("\n%a+ +" .. subject .. " ")):to_be_truthy()
    end
    for line in out:gmatch("\n(%S+)[^\n]*") do
      if not (line == "ok" or line == "warning" or line == "error" or line == "cure:") then
        error("a line begins with " .. line, 0)
      end
    end
    expect(status):to_be(out:find("\nerror") and 1 or 0)
  end)

  it("and says the same to machines", function()
    local out = run("--doctor --json")
    expect(out:sub(1, 10)):to_be('{"lines":[')
    expect(out:find('"status":"ok"', 1, true) and out:find('"version":"' .. gb.version, 1, true)):to_be_truthy()
    expect(select(2, out:gsub("\n", "\n"))):to_be(1)
  end)

  it("takes no other option", function()
    expect(function() gb.doctor { jason = true } end):to_fail("doctor: unknown option 'jason'; did you mean 'json'?")
    expect(function() gb.doctor(1) end):to_fail("expects a table of options")
  end)
end)

gb.test.finish()
