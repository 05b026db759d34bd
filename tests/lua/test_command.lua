-- test_command.lua - `gibbous` is a drop-in for `lua`: options, arg, the environment, exit codes, messages and the
-- standard library are compared with `lua5.4` byte for byte: standard output, standard error and the exit status of
-- each case. Both run under the name `lua`, from a folder of their own that comes first in PATH, so that not even the
-- program's name has to be taken out of messages.
--
-- What differs on purpose: options of two dashes, and the prompt. Both have tests of their own.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- {==== running ====

local gibbous = gb.test.program()
local function lines_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("a")
  pipe:close()
  return text
end

local stock = lines_of("command -v lua5.4"):match("[^\n]+")
local same_release = stock and lines_of("lua5.4 -v 2>&1") == lines_of(("'%s' -v 2>&1"):format(gibbous))
if not same_release then
  print(stock and "lua5.4 is another release of Lua than the one inside gibbous: messages cannot be compared" or
        "lua5.4 is not installed, so there is nothing to compare with (./dev setup installs it)")
  print("0 passed, 0 failed, 1 skipped")
  return
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  file:close()
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("a")
  file:close()
  return text
end

local function absolute(path) return path:sub(1, 1) == "/" and path or
  lines_of("pwd"):match("[^\n]+") .. "/" .. path end

local root = os.tmpname()
os.remove(root)
assert(os.execute(("mkdir -p '%s/stock' '%s/ours' '%s/work'"):format(root, root, root)))
assert(os.execute(("ln -s '%s' '%s/stock/lua' && ln -s '%s' '%s/ours/lua'"):format(stock, root, absolute(gibbous),
  root)))

-- Addresses differ from run to run, and nothing else may.
local function plain(text) return (text:gsub("0x%x+", "0xADDRESS")) end

-- Run a shell command with one of the two as `lua`: what it wrote, what it complained about, how it ended.
local function run(who, command, input)
  write(root .. "/in", input or "")
  local line = ("cd '%s/work' && env -i PATH='%s/%s:/usr/bin:/bin' HOME=/nonexistent LC_ALL=C TZ=UTC sh -c '%s' \z
    <'%s/in' >'%s/out' 2>'%s/err'"):format(
    root, root, who, command:gsub("'", [['\'']]), root, root, root)
  local _, how, code = os.execute(line)
  return { out = plain(read(root .. "/out")), err = plain(read(root .. "/err")), code = ("%s %d"):format(how, code) }
end

-- The first line that differs, of two texts that do.
local function difference(want, got)
  local theirs, ours = want:gmatch("([^\n]*)\n?"), got:gmatch("([^\n]*)\n?")
  local a, b = theirs(), ours()
  while a and a == b do a, b = theirs(), ours() end
  return ("lua writes  %q\n  gibbous     %q"):format(a or "nothing more", b or "nothing more")
end

local function compare(command, input)
  it(command .. (input and #input < 40 and (" <<< %q"):format(input) or input and " <<< ..." or ""), function()
    local want, got = run("stock", command, input), run("ours", command, input)
    for _, stream in ipairs { "out", "err" } do
      if got[stream] ~= want[stream] then error(difference(want[stream], got[stream]), 0) end
    end
    expect(got.code):to_be(want.code)
  end)
end

-- ====}

-- {==== scripts that options are tried on ====

local function script(name, text) write(root .. "/work/" .. name, text) end

script("args.lua", [[
for i = -8, 8 do if arg[i] then print(i, arg[i]) end end
print(#arg, select("#", ...), ...)
]])
script("fail.lua", "local function inner() error('deep') end\nlocal function outer() inner() end\nouter()\n")
script("syntax.lua", "x = = 1\n")
script("shebang.lua", "#!/usr/bin/env lua\nprint(debug.getinfo(1, 'l').currentline, ...)\n")
script("bom.lua", "\xEF\xBB\xBFprint('after a mark')\n")
script("bom_shebang.lua", "\xEF\xBB\xBF#!shebang\nerror('line two')\n")
script("mod.lua", "print('mod loaded', ...)\nreturn { name = 'mod', where = ... }\n")
script("bad_mod.lua", "error({ code = 1 })\n")
script("bad_syntax_mod.lua", "return return\n")
script("init.lua", "print('init', arg and arg[0], ...)\n")
script("init_fail.lua", "error('init fails')\n")
script("empty.lua", "")
script("return.lua", "return 1, 2, 3\n")
script("-dash.lua", "print('dash', ...)\n")
script("stdin.lua", "print(io.read('l'), io.read('n'), io.read('a'))\n")
script("warn.lua", "warn('one ', 'warning')\nwarn('@on')\nwarn('two')\nwarn('@off')\nwarn('three')\n")
script("close.lua", [[
local _ <close> = setmetatable({}, { __close = function(_, e) print("closed", e) end })
kept = setmetatable({}, { __gc = function() print("collected") end })
local how = ...
if how == "exit" then os.exit(true, true)
elseif how == "code" then os.exit(9, true)
elseif how == "quick" then os.exit(4, false)
elseif how == "error" then error("with an open variable") elseif how == "in close" then
  local _ <close> = setmetatable({}, { __close = function() error("from close") end })
elseif how == "coroutine" then coroutine.wrap(function()
  local _ <close> = setmetatable({}, { __close = function() print("inner") end }) os.exit(3, true) end)()
elseif how == "return" then return "a result" end
]])
script("shebang_only.lua", "#!/usr/bin/env lua") -- no line end
script("hash_only.lua", "#")
script("bom_only.lua", "\xEF\xBB\xBF")
script("half_bom.lua", "\xEF\xBBprint(1)\n")
script("bom_binary.lua", "\xEF\xBB\xBF" .. string.dump(assert(load("print('behind a mark')", "=b"))))
script("crlf.lua", "print(1)\r\nerror('on line two')\r\n")
script("zero.lua", "print(1)\0print(2)\n")
script("error_values.lua", [[
local how = ...
local function throws(v) error(v) end
if how == "nil" then throws(nil)
elseif how == "false" then throws(false)
elseif how == "number" then throws(1.5)
elseif how == "level2" then error("x", 2)
elseif how == "object" then throws(setmetatable({}, { __tostring = function() return "an object\nof two lines" end }))
elseif how == "bad" then throws(setmetatable({}, { __tostring = function() error("no text") end }))
elseif how == "name" then throws(setmetatable({}, { __name = "a.type" }))
elseif how == "thread" then throws(coroutine.running())
elseif how == "long" then throws(("x"):rep(5000))
elseif how == "zero" then throws("a\0b")
elseif how == "overflow" then
  local function f() return f() + 1 end
  f()
elseif how == "handler" then print(xpcall(throws, function(e) error(e) end, "x"))
elseif how == "deep" then
  local function g(n) if n == 0 then error("deep") end g(n - 1) end
  g(40)
end
]])
script("warnings.lua", "warn('@off', '') warn('@', 'on') warn('not a switch') warn('@unknown') warn('@on') \z
  warn('a\\0b', 'c') warn('')\n")
script("folder.mod.lua", "return ...\n")
write(root .. "/work/stripped.luac", string.dump(assert(load("local x = nil; x()", "=s")), true))
write(root .. "/work/binary.luac", string.dump(assert(load("print('from bytecode', ...)", "=binary"))))
write(root .. "/work/truncated.luac", string.dump(assert(load("return 1")), true):sub(1, 40))

-- ====}

describe("options", function()
  for _, command in ipairs {
    "lua -v", "lua -v -", "lua -v -v", "lua -vv", "lua -v -e 'print(1)'", "lua -e 'print(1)' -v", "lua -v args.lua a",
      "lua -E -v",
    "lua -e", "lua -e -v", "lua -l", "lua -l -v", "lua -x", "lua -x args.lua", "lua -ee", "lua -Ex", "lua -Wx",
      "lua -ix", "lua -v -y",
    "lua -e 'print(1)' -z", "lua -", "lua - a b", "lua -- - ", "lua -- args.lua x", "lua -- -dash.lua x",
      "lua -dash.lua",
    "lua -e 'print(1)'", "lua -e'print(1)'", "lua -e 'print(1)' -e 'print(2)'", "lua -e 'x=1' -e 'print(x)'",
      "lua -e ''",
    "lua -e 'print(...)'", "lua -e 'error(\"boom\")'", "lua -e 'error(\"boom\", 0)'", "lua -e 'error()'",
      "lua -e 'error(nil)'",
    "lua -e 'error({})'", "lua -e 'error(setmetatable({}, {__tostring = function() return \"an object\" end}))'",
    "lua -e 'error(setmetatable({}, {__tostring = function() return 1 end}))'", "lua -e 'error(12)'",
      "lua -e 'error(print)'",
    "lua -e 'coroutine.close(coroutine.running())'", "lua -e 'local co = coroutine.running() \z
      coroutine.wrap(function() coroutine.close(co) end)()'",
    "lua -e 'coroutine.close(1)'", "lua -e 'local co = coroutine.create(print) print(coroutine.close(co), \z
      coroutine.status(co))'",
    "lua -e 'x ='", "lua -e 'x = }'", "lua -e 'x = \"abc'", "lua -e 'goto nowhere'", "lua -e 'break'",
      "lua -e 'local x <const> = 1; x = 2'",
    "lua -e 'os.exit(3)'", "lua -e 'os.exit(true)'", "lua -e 'os.exit(false)'", "lua -e 'os.exit(true, true)'",
      "lua -e 'os.exit(7, true)'",
    "lua -e 'error(1)' -e 'print(2)'", "lua -e 'error(1)' args.lua", "lua -l mod", "lua -lmod",
      "lua -l mod -e 'print(mod.name)'",
    "lua -l m=mod -e 'print(m.name, mod)'", "lua -lm=mod -e 'print(m.name)'", "lua -l =mod -e 'print(_G[\"\"].name)'",
      "lua -l nothere",
    "lua -l bad_mod", "lua -l bad_syntax_mod", "lua -l string", "lua -lstring -e 'print(string.len(1))'",
      "lua -l mod -l mod",
    "lua -l mod args.lua z", "lua -e 'arg = nil' args.lua", "lua -e 'arg = {1, 2}' args.lua a b",
      "lua -e 'arg[1] = \"changed\"' args.lua a b",
    "lua -e 'arg = setmetatable({}, {__len = function() return 2 end})' return.lua", "lua args.lua",
      "lua args.lua a 'b c' ''", "lua -e 'x = 1' args.lua a",
    "lua -W args.lua -v -e", "lua -E -W -e 'x=1' -l mod args.lua -i", "lua fail.lua", "lua syntax.lua",
      "lua nothere.lua", "lua .", "lua ''",
    "lua shebang.lua a", "lua bom.lua", "lua bom_shebang.lua", "lua binary.luac x y", "lua truncated.luac",
      "lua empty.lua", "lua return.lua",
    "lua -W warn.lua", "lua warn.lua", "lua -e 'warn(\"x\")' -W -e 'warn(\"y\")'", "lua -e 'warn()'",
      "lua -e 'warn(1, nil)'",
    "lua -W -e 'setmetatable({}, {__gc = function() error(\"in gc\") end}) collectgarbage()'", "lua ./args.lua",
      "lua -e 'print(arg[0], arg[-1], #arg)'",
    "lua -e 'for i = -3, 1 do print(i, arg[i]) end' -e ''", "lua -i -x", "lua -v nothere.lua",
      "lua -e 'io.stderr:write(1) io.write(2)' nothere.lua",
  } do
    compare(command)
  end
  -- Lua 5.4.6 makes a table for -1 arguments here and finds no memory for it; before and after, what follows is
  -- standard input.
  it("lua --", function()
    local want, got = run("stock", "lua --", "print(1)"), run("ours", "lua --", "print(1)")
    if want.err:find("not enough memory", 1, true) then want = { out = "1\n", err = "", code = "exit 0" } end
    for _, part in ipairs { "out", "err", "code" } do expect(got[part]):to_be(want[part]) end
  end)
end)

describe("how a script ends", function()
  for _, how in ipairs { "", "exit", "code", "quick", "error", "'in close'", "coroutine", "return" } do
    compare("lua close.lua " .. how)
  end
  for _, how in ipairs { "nil", "false", "number", "level2", "object", "bad", "name", "long", "zero", "overflow",
    "handler", "deep" } do
    compare("lua error_values.lua " .. how)
  end
  for _, command in ipairs {
    "lua shebang_only.lua", "lua hash_only.lua", "lua bom_only.lua", "lua half_bom.lua", "lua bom_binary.lua",
      "lua crlf.lua", "lua zero.lua",
    "lua warnings.lua", "lua -W warnings.lua", "lua stripped.luac", "lua -e 'return 1, 2'",
      "lua -e 'local x <close> = 42'",
    "lua -e 'os.exit(true, true)' -e 'print(2)'", "lua -e 'os.exit(256)'", "lua -e 'os.exit(-1)'",
      "lua -e 'os.exit(1.5)'", "lua -e 'print(_VERSION)'",
    "lua -v -e 'error(nil)'", "lua -l folder.mod -e 'print(package.loaded[\"folder.mod\"])'",
      "lua -l m=folder.mod -e 'print(m)'",
    "lua -l folder-mod", "lua -l m-x=mod -e 'print(_G[\"m-x\"].name)'", "lua -l mod-suffix",
      "lua -e 'local t = setmetatable({}, {__index = error}) print(t.x)'",
    "lua -e 'coroutine.wrap(function() error(\"in a coroutine\") end)()'",
      "lua -e 'debug.sethook(function() error(\"in a hook\") end, \"l\")' -e 'x = 1'",
    "lua -e 'io.stdout:close() print(1)'", "lua -e 'io.stdout:setvbuf(\"full\") io.write(1) os.exit(0)'",
      "lua -e 'arg = 5' args.lua", "lua -", "lua - -v < args.lua",
    "lua -e 'print(pcall(load, nil))'", "lua -e 'print(#arg, arg[-1], arg[-2])' - < empty.lua", "lua - < syntax.lua",
      "lua - < binary.luac", "lua < shebang_only.lua",
    "lua < bom.lua", "lua args.lua -- -e x", "lua -- -- x", "lua -W -W warn.lua", "lua -i -e 'x' -z",
  } do
    compare(command)
  end
end)

-- `lua` says nothing and ends with 0: what a script printed was lost without a word.
describe("standard output that cannot be written", function()
  local function ends(command, code, err)
    it(command, function()
      local got = run("ours", command)
      expect(got.code):to_be("exit " .. code)
      expect(got.err):to_be(err)
    end)
  end
  local failed = "gibbous: cannot write standard output"
  local full = failed .. ": No space left on device\n"
  ends("lua -e 'io.write(1)' >/dev/full", 1, full)
  ends("lua -e 'io.write(1) os.exit(true)' >/dev/full", 1, full)
  ends("lua -e 'io.write(1) os.exit(3, true)' >/dev/full", 1, full)
  -- print has tried already, and nobody knows any more why it could not
  ends("lua -e 'print(1)' >/dev/full", 1, failed .. "\n")
  ends("lua -v >/dev/full", 1, failed .. "\n")
  ends("lua --sandbox args.lua >/dev/full", 1, failed .. "\n")
  ends("lua -e 'print(1)' >&-", 1, failed .. "\n")
  ends("lua -e 'x = 1' >&-", 0, "")
  ends("lua -e 'x = 1' >/dev/full", 0, "")
  -- a reader that went away ends it as it does other tools, by the signal; or, where that is ignored, as a failure
  ends("(sleep 0.2; lua -e 'print(1)'; echo $? >&2) | true", 0, "141\n")
  ends("(trap '' PIPE; sleep 0.2; lua -e 'print(1)'; echo $? >&2) | true", 0, failed .. "\n1\n")
end)

describe("the environment", function()
  for _, command in ipairs {
    "LUA_INIT_5_4=@init.lua LUA_INIT=@init_fail.lua lua args.lua", "LUA_INIT_5_4=@syntax.lua lua -e 'print(1)'",
      "LUA_INIT_5_4= LUA_INIT='print(0)' lua -e ''",
    "LUA_INIT=@ lua -e 'print(1)'", "LUA_INIT=@binary.luac lua -e 'print(1)'", "LUA_INIT='return 5' lua -e 'print(1)'",
      "LUA_INIT='warn(\"a\")' lua -W -e 'warn(\"b\")'",
    "LUA_INIT='arg = {}' lua args.lua x", "LUA_INIT='print(arg[0], arg[1])' lua args.lua x",
      "LUA_INIT='error(setmetatable({}, {__tostring = function() return \"o\" end}))' lua -e ''",
    "LUA_INIT=@bom.lua lua -e ''", "LUA_INIT='local x <close> = setmetatable({}, {__close = print})' lua -e \z
      'print(2)' | sed 's/0x[0-9a-f]*//'",
  } do
    compare(command)
  end
end)

describe("the environment, paths", function()
  for _, command in ipairs {
    "LUA_INIT='print(1, ...)' lua -e 'print(2)'", "LUA_INIT='print(1)' lua -E -e 'print(2)'",
      "LUA_INIT=@init.lua lua args.lua a",
    "LUA_INIT_5_4='print(54)' LUA_INIT='print(0)' lua -e ''", "LUA_INIT=@nothere.lua lua -e 'print(2)'",
      "LUA_INIT='x =' lua -e 'print(2)'",
    "LUA_INIT=@init_fail.lua lua -e 'print(2)'", "LUA_INIT='error{}' lua -v", "LUA_INIT= lua -e 'print(2)'",
      "LUA_INIT='os.exit(4)' lua -e 'print(2)'",
    "LUA_INIT_5_4='error(1)' lua -e ''", "LUA_PATH='/x/?.lua;;/y/?.lua' lua -e 'print(package.path)'",
      "LUA_PATH=';;' lua -E -e 'print(package.path)'",
    "LUA_PATH_5_4=/a/? LUA_PATH=/b/? lua -e 'print(package.path)'",
      "LUA_CPATH='/x/?.so;;' lua -e 'print(package.cpath)'",
    "LUA_PATH=/only/?.lua lua -e 'require \"mod\"'", "lua -e 'print(package.path, package.cpath, package.config)'",
  } do
    compare(command)
  end
end)

describe("standard input", function()
  local inputs = {
    { "lua", "print('from stdin', ...)" }, { "lua -", "print('from stdin', ...)" },
      { "lua - a b", "print(..., arg[0], arg[1], arg[-1])" },
    { "lua", "error('fails')" }, { "lua -", "error('fails')" }, { "lua", "x = = 1" }, { "lua -", "x = = 1" },
      { "lua", "#!shebang\nprint(1)" },
    { "lua -e 'print(1)' -", "print(2)" }, { "lua -e 'print(1)'", "print(2)" }, { "lua -v -", "print(2)" },
      { "lua stdin.lua", "a line\n12 rest\nmore" },
    { "lua -l mod", "print(2)" }, { "lua -W", "warn('x')" }, { "lua -E", "print(2)" }, { "lua -- -", "print(2)" },
      { "lua", "" },
    { "lua", string.dump(assert(load("print('bytecode from stdin')", "=x"))) },
      { "lua -e 'print(io.read(\"a\"))'", "text\0with\0zeros" },
    { "lua", "os.exit(5)" }, { "lua -", "return 1" },
  }
  for _, row in ipairs(inputs) do compare(row[1], row[2]) end
end)

describe("the standard library", function()
  local scripts, names = dofile("tests/lua/stock_scripts.lua"), {}
  for name in pairs(scripts) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    script(name .. ".lua", scripts[name])
    compare("lua " .. name .. ".lua one two", "first line of the input\n12 and more")
  end
end)

-- A module in C, built for any Lua 5.4 and linked to none.
if arg[1] then
  describe("a module in C", function()
    local folder, name = arg[1]:match("^(.*)/(.-)%.so$")
    for _, statement in ipairs {
      "print(require(%q).add(1, 2))", "print(pcall(require(%q).add, 1, {}))", "require(%q).fail()",
        "print(require(%q).call(function(x) return x + 1 end, 4))",
      "print(select(2, require(%q)))", "local o = require(%q).object() print(o.name, #o) o = nil collectgarbage()",
    } do
      compare(("LUA_CPATH='%s/?.so' lua -e '%s'"):format(folder, statement:format(name)))
    end
  end)
end

os.execute(("rm -rf '%s'"):format(root))
gb.test.finish()
