-- stock_scripts.lua - scripts over the language and its standard library that print what they find, by name.
-- test_command.lua runs each through `lua5.4` and through `gibbous`. None of them touches gb.

return {
  numbers = [[
    print(7 // 2, -7 // 2, 7 % -3, -7 % 3, 7.5 // 2, 1 // 0.0, -1 % math.huge, 2^53, 10 / 2, 3 | 4, ~0, 1 << 63, 1 >> 1, 5 // 0.0)
    print(1e15, 1e16, 1e100, 0.1, 1/3, -0.0, 100000000000000, 2^63, math.maxinteger + 1 == math.mininteger, 1e308 * 10, -(0/0) ~= 0/0)
    print(math.tointeger(3.0), math.tointeger("8"), math.tointeger(3.5), 3 == 3.0, math.type(1), math.type(1.0), math.type("1"))
    print("10" + 5, "0x10" + 0, "1e1" * 1, 10 .. 20, tostring(1e15), tostring(-0.0), tonumber("  12  "), tonumber("1e"), tonumber("z", 36), tonumber("8", 8))
    print(pcall(function() return 1 // 0 end)) print(pcall(function() return 1 % 0 end)) print(pcall(function() return 1.5 | 1 end))
    print(pcall(function() return "a" + 1 end)) print(pcall(function() return {} .. "x" end)) print(pcall(function() return 1 < "2" end))
    print(math.floor(-3.5), math.ceil(-3.5), math.fmod(-7, 3), math.abs(math.mininteger), math.ult(1, -1), math.max(1, 2.5), math.min(3))
    print(pcall(math.max)) print(pcall(math.floor, "x")) print(math.type(math.random(0))) print(pcall(math.random, 2, 1))
    math.randomseed(42) print(math.random(100), math.random(100), math.random()) print(string.format("%.3f", math.pi), math.sqrt(2), math.exp(1))
    for i = 3, 1 do print("never") end for i = 1.0, 2 do print(i) end print(pcall(function() for i = 1, 10, 0 do end end))
    for i = math.maxinteger - 1, math.maxinteger do print(i) end
  ]],
  strings = [[
    print(("x"):rep(3, ","), ("abc"):sub(-2), ("abc"):byte(1, -1), ("%d"):format(3.0), #"\u{10FFFF}", "\x41\65\z
           B", 'a\
b')
    print(("hello world"):find("o w"), ("hello"):find("l+"), ("hello"):find("xyz"), ("a.b"):find(".", 1, true), ("abc"):find("", 10))
    print(("k=v; k2=v2"):gsub("(%w+)=(%w+)", "%2=%1"), ("abc"):gsub("", "-"), ("abc"):gsub("%w", { a = 1, b = true, c = false }))
    print(("THE (quick) fox"):find("%((%a+)%)"), ("  trim "):match("^%s*(.-)%s*$"), ("f(a(b)c)d"):match("%b()"), ("THE fox"):find("%f[%a]%a+%f[%A]"))
    for k, v in ("a=1, b=2"):gmatch("(%w+)=(%w+)") do io.write(k, v, ";") end print()
    print(("%5.2f|%-5d|%05d|%+d|%x|%X|%o|%e|%g|%a|%c|%s|%10.3s|%q|%%"):format(3.14159, 42, 42, 42, 255, 255, 8, 12345.678, 1e20, 1.0, 65, "s", "string", "q\n\0\"\\"))
    print(("%q %q %q %q"):format(1/3, math.mininteger, 0/0, 1e400), ("%i"):format(7), ("%-10sx"):format("ab"))
    for _, bad in ipairs { "%", "%y", "%d", "%10.123f", "%q" } do print(pcall(string.format, bad, {})) end
    print(pcall(string.rep, "x", -1), pcall(string.rep, "x", 1 << 40)) print(pcall(string.rep)) print(pcall(("x").bad)) print(pcall(string.char, 256))
    print(pcall(string.find, "a", "[a")) print(pcall(string.find, "a", "%")) print(pcall(string.gsub, "a", "(", "")) print(pcall(string.gsub, "x", "x", "%2"))
    print(string.pack("<i4", 100):byte(1, -1)) print(string.unpack("<i4", "\100\0\0\0")) print(pcall(string.unpack, "<i4", "abc")) print(string.packsize("i4i8"))
    print(("x"):upper(), ("ÄX"):lower(), ("abc"):reverse(), ("abc"):len(), "a" < "b", "Z" < "a", "a" .. 1 .. 2.0, ("a\0b"):len(), "\0" == "")
    print(utf8.char(228, 8364, 128512), utf8.len("äöü"), utf8.codepoint("ä", 1), utf8.len("\xff"), utf8.offset("aäb", 3)) print(pcall(utf8.codepoint, "\xff"))
    for p, c in utf8.codes("aä€") do io.write(p, ":", c, " ") end print() print(#utf8.charpattern)
    print(load(("a = 1 "):rep(3))) print(tostring(nil), tostring(true), tostring("x"))
  ]],
  tables = [[
    local t = { 3, 1, 2, x = 1, [10] = 5 } table.sort(t) print(table.concat(t, ","), #t, select("#", table.unpack(t)))
    table.insert(t, 9) table.insert(t, 1, 0) print(table.concat(t, " "), table.remove(t), table.remove(t, 1), table.remove({}), table.concat({}, "x"))
    print(table.concat(table.move({ 1, 2, 3 }, 2, 3, 1), ","), table.unpack({ 1, 2, 3 }, 2), table.pack(nil, nil).n)
    print(pcall(table.insert, t, 1, 2, 3)) print(pcall(table.insert, t, 100, 2)) print(pcall(table.concat, { 1, {}, 3 })) print(pcall(table.sort, { 3, "x", 1 }))
    print(pcall(table.sort, { 1, 2, 3, 4, 5 }, function() return true end)) print(pcall(table.unpack, {}, 1, 1e7)) print(pcall(table.insert, nil, 1))
    print(next({}), rawlen({ 1, 2 }), rawget(setmetatable({}, { __index = function() return 1 end }), 1), rawequal("a", "a"), select(-1, 1, 2, 3))
    print(pcall(next, {}, "nokey")) print(pcall(rawset, 1, 2, 3)) print(pcall(setmetatable, 1, {})) print(pcall(select, 0))
    print(pcall(function() local a; a.b = 1 end)) print(pcall(function() undefined_global.x = 1 end)) print(pcall(function() local t = {} t.x.y = 1 end))
    print(pcall(function() ({})[nil] = 1 end)) print(pcall(function() ({})[0/0] = 1 end)) print(pcall(function() local s = "x"; s:nothing() end))
    for i, v in ipairs { 1, 2, nil, 4 } do io.write(i, "=", v, " ") end print()
    local meta = setmetatable({}, { __index = function(_, k) return k .. "!" end, __newindex = function(t, k, v) rawset(t, k, v * 2) end,
      __call = function(_, ...) return select("#", ...) end, __len = function() return 42 end, __tostring = function() return "meta" end, __name = "M",
      __eq = function() return true end, __lt = function() return true end, __le = function() return false end, __concat = function(a, b) return "cat" end,
      __unm = function() return "neg" end, __close = print, __metatable = "locked", __idiv = function() return "idiv" end, __pairs = function(t) return next, { 1 }, nil end })
    meta.v = 4 print(meta.x, meta.v, meta(1, 2), #meta, tostring(meta), meta < meta, meta <= meta, meta .. "x", -meta, getmetatable(meta), meta // 1)
    for k, v in pairs(meta) do print(k, v) end print(pcall(setmetatable, meta, {})) print(#"abc", #{ n = 1 })
  ]],
  control = [[
    for i = 1, 3 do for j = 1, 3 do if j == 2 then goto continue end io.write(i, j, " ") ::continue:: end end print()
    local i = 0 repeat local done = i >= 2; i = i + 1 until done print(i) while true do i = i - 1 if i == 0 then break end end
    do local a <close> = setmetatable({}, { __close = function(_, e) print("closed", e) end }) print("inside") end
    print(pcall(function() local b <close> = setmetatable({}, { __close = function(_, e) print("closing on", e) error("second") end }) error("first") end))
    print(pcall(function() local c <close> = 42 end)) print(select("#", (function() end)()), (function() return 1, 2 end)())
    local function vararg(...) local a, b = ... return select("#", ...), a, b, ... end print(vararg()) print(vararg(1, nil, 3)) print((vararg(1, 2)))
    local function fact(n) return n <= 1 and 1 or n * fact(n - 1) end print(fact(20), fact(25.0))
    local function tail(n) if n == 0 then return "end" end return tail(n - 1) end print(tail(100000))
    print(pcall(function() local function deep(n) return 1 + deep(n + 1) end return deep(1) end)) print(not nil == true, 1 and 2, nil or false, false and error())
    print(pcall(load, "x =")) print(load("x =")) print(load("return ...", "chunk", "t", {})(5)) print(load(function() return nil end)) print(pcall(load, 5))
    print(load("\27Lua", "b", "t")) print(load("return 1", "t", "b")) print(load("for", "=name")) print(load("x", "@file")) print(load("error('x')", "@f.lua") and pcall(load("error('x')", "@f.lua")))
    local a <const> = 5 print(a) print(load("local a <const> = 1; a = 2")) print(load("local x <unknown> = 1")) print(load("::l:: ::l::")) print(load("goto x; local y ::x:: print(y)"))
    print(load("x = 'unfinished")) print(load("x = [[unfinished")) print(load("x = '\\q'")) print(load("x = '\\300'")) print(load("x = '\\u{110000000}'")) print(load("--[[ open"))
    print(load("x = 0x")) print(load("x = 1..2")) print(load("x = 3e")) print(load("a.b:c = 1")) print(load("f() = 1")) print(load("local function f() return 1 end end"))
    print(load("x = }")) print(load(("("):rep(300) .. ("x")  )) print(load("local " .. ("a,"):rep(250) .. "b"))
  ]],
  errors = [[
    local function level(n) error("at level " .. n, n) end
    for n = 0, 3 do print(pcall(level, n)) end print(pcall(error)) print(pcall(error, nil)) print(pcall(error, { 1 })) print(select(2, pcall(error, print)) == print)
    print(xpcall(function() error("inner") end, function(m) return "handled: " .. m end)) print(xpcall(function() error("a") end, function() error("b") end))
    print(xpcall(function(...) return ... end, print, 1, 2, 3)) print(pcall(xpcall)) print(pcall(pcall)) print(pcall(assert, false)) print(pcall(assert, nil, "message"))
    print(pcall(assert, false, { 1 })) print(assert(1, 2, 3)) print(pcall(assert)) print(debug.traceback("msg")) print(debug.traceback("msg", 2)) print(debug.traceback(12))
    print(xpcall(function() local x = nil; x() end, debug.traceback)) print(pcall(string.rep, "x", 1e10)) print(pcall(ipairs)) print(pcall(setmetatable, {}))
    local t = setmetatable({}, { __index = function(_, k) error("no field " .. k, 2) end }) print(pcall(function() return t.missing end))
    print(pcall(tostring)) print(pcall(tonumber)) print(pcall(tonumber, "x", 99)) print(pcall(getmetatable)) print(pcall(collectgarbage, "nothing")) print(pcall(require, "not.there"))
    print(pcall(string.dump, print)) print(pcall(debug.getinfo, 1, "X")) print(pcall(debug.sethook, 1)) print(pcall(coroutine.resume, 1)) print(pcall(os.time, { year = 2020 }))
    print(pcall(os.date, "%Ez")) print(pcall(io.open, "x", "bad")) print(io.open("/nonexistent/file")) print(pcall(io.lines, "/nonexistent")) print(pcall(dofile, "/nonexistent"))
    print(loadfile("/nonexistent")) local up = 1 print(pcall(function() return up.x.y end)) print(pcall(function() up() end)) print(pcall(function() up:m() end)) print(pcall(function() return up < {} end))
    print(pcall(function() return -{} end)) print(pcall(function() return #5 end)) print(pcall(function() return {} < {} end)) print(pcall(function() return 2^53 | 0.5 end)) print(pcall(function() return math.huge // 1 | 0 end))
    error("the end\nin two lines")
  ]],
  uncaught_object = [[ local E = setmetatable({}, { __tostring = function() return "an error object" end }) error(E) ]],
  uncaught_table = [[ error({ code = 2 }) ]],
  uncaught_nil = [[ error(nil) ]],
  uncaught_number = [[ error(42) ]],
  uncaught_deep = [[
    local t = {} function t.method(self, n) if n == 0 then local x = nil; return x.field end local r = self:method(n - 1) return r end
    function global_function() t:method(30) end
    local co = coroutine.wrap(function() global_function() end)
    table.sort({ 1, 2 }, function() co() end)
  ]],
  uncaught_in_coroutine =
    [[ local co = coroutine.wrap(function() coroutine.yield(1) error("in coroutine") end) co() co() ]],
  uncaught_overflow = [[ local function f() return 1 + f() end f() ]],
  uncaught_c_overflow =
    [[ local s = setmetatable({}, {}) getmetatable(s).__index = function(t, k) return t[k .. "x"] end print(s.a) ]],
  uncaught_string_overflow =
    [[ local f = function(m) return m:gsub(".", f) end; local function g(x) return (x:gsub(".", g)) end g("a") ]],
  uncaught_memory = [[ print(("x"):rep(1 << 20):rep(1 << 30)) ]],
  uncaught_close =
    [[ local x <close> = setmetatable({}, { __close = function() error("while closing") end }) error("first") ]],
  return_values = [[ print("before") return "ignored", 2 ]],
  exit_in_coroutine =
    [[ coroutine.wrap(function() local x <close> = setmetatable({}, { __close = function() print("closed") end }) os.exit(9, true) end)() ]],
  exit_closes = [[ setmetatable({}, { __gc = function() print("collected at the end") end }) os.exit(true, true) ]],
  exit_no_close =
    [[ setmetatable({}, { __gc = function() print("not printed") end }) io.write("buffered") os.exit(2) ]],
  end_of_script =
    [[ setmetatable({}, { __gc = function() print("collected at the end") end }) local y <close> = setmetatable({}, { __close = function() print("closed at the end") end }) ]],
  gc_error =
    [[ setmetatable({}, { __gc = function() error("in a finalizer") end }) warn("@on") collectgarbage() print("after") setmetatable({}, { __gc = function() error({}) end }) ]],
  coroutines = [[
    local co = coroutine.create(function(a, b) print("start", a, b) local c = coroutine.yield(a + b) print("got", c) local d, e = coroutine.yield(c * 2) return d + e end)
    print(coroutine.resume(co, 1, 2)) print(coroutine.status(co)) print(coroutine.resume(co, 10)) print(coroutine.resume(co, 3, 4)) print(coroutine.resume(co)) print(coroutine.status(co))
    print(coroutine.isyieldable(), coroutine.running()) print(pcall(coroutine.yield, 1)) print(pcall(coroutine.create, 1)) print(pcall(coroutine.wrap, nil)) print(pcall(coroutine.status, nil))
    local w = coroutine.wrap(function() error("inside") end) print(pcall(w)) print(pcall(w)) local w2 = coroutine.wrap(function() error({ 1 }) end) print(type(select(2, pcall(w2))))
    local self self = coroutine.create(function() return coroutine.resume(self) end) print(coroutine.resume(self)) print(coroutine.resume(coroutine.running()))
    local again again = coroutine.wrap(function() return again() end) print(pcall(again)) print(coroutine.close(coroutine.create(print))) print(pcall(coroutine.close, coroutine.running()))
    local closing = coroutine.create(function() local x <close> = setmetatable({}, { __close = function() print("closed") error("in close") end }) coroutine.yield() end)
    coroutine.resume(closing) print(coroutine.close(closing)) print(coroutine.status(closing))
    local closing2 = coroutine.wrap(function() local x <close> = setmetatable({}, { __close = function(_, e) print("closed by", e) end }) error("wrapped") end) print(pcall(closing2))
    print(select("#", coroutine.resume(coroutine.create(function() return table.unpack({}, 1, 200) end)))) for i in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) do io.write(i, " ") end print()
    local function gen(n) return coroutine.wrap(function() for i = 1, n do coroutine.yield(i) end end) end local sum = 0 for x in gen(10000) do sum = sum + x end print(sum)
    print(pcall(coroutine.wrap(function() return pcall(function() coroutine.yield("through pcall") end) end))) local y = coroutine.create(function() return xpcall(function() coroutine.yield(1) error("after") end, debug.traceback) end) print(coroutine.resume(y)) print(coroutine.resume(y))
    local nested = coroutine.wrap(function() local inner = coroutine.wrap(function() coroutine.yield("inner") error("nested error") end) coroutine.yield(inner()) inner() end) print(nested()) print(pcall(nested))
    print(debug.traceback(co)) local z = coroutine.create(function() local here = 1 coroutine.yield() end) coroutine.resume(z) print(debug.traceback(z)) print(debug.traceback(z, "msg", 0)) print(debug.getlocal(z, 1, 1))
    print(coroutine.resume(coroutine.create(function(...) return select("#", ...) end), table.unpack({}, 1, 250)))
    local function deep(n) return n == 0 and "bottom" or coroutine.wrap(deep)(n - 1) end print(deep(100)) print(pcall(deep, 250))
    print(pcall(string.gsub, "x", "x", coroutine.wrap(function() coroutine.yield("r") end))) print(pcall(table.sort, { 1, 2, 3 }, coroutine.yield)) print(pcall(coroutine.wrap(function() table.sort({ 3, 2, 1 }, function() coroutine.yield() end) end)))
    print(tostring(coroutine.resume):match("^builtin") or tostring(coroutine.resume):match("^function"), debug.getinfo(coroutine.resume).what, debug.getinfo(coroutine.wrap, "u").nparams)
    local names = {} for name in pairs(coroutine) do names[#names + 1] = name end table.sort(names) print(table.concat(names, " "))
  ]],
  files = [[
    local name = os.tmpname() local f <close> = assert(io.open(name, "w")) print(io.type(f), f:write("line one\n", 2, "\nthree 3.5 0x10\n"), f:seek("cur"), f:close and true)
    f:flush() for line in io.lines(name) do io.write("[", line, "]") end print() for a, b in io.lines(name, 1, "l") do io.write(a, "|", b or "nil", ";") end print()
    local r = io.open(name) print(r:read("l", "n", "l", "L")) print(r:read("a")) print(r:read("a"), r:read("l"), r:read(0)) print(r:seek("set", 2), r:read(3), r:seek("end")) r:close() print(io.type(r), pcall(r.read, r), tostring(r))
    print(pcall(io.lines(name, "x"))) print(pcall(r.seek, f, "nowhere")) print(f:setvbuf("full", 1024), f:setvbuf("no")) print(io.output() == io.stdout, io.type(42), io.type(io.stdin))
    io.output(name) io.write("replaced") io.close() io.output(io.stdout) io.input(name) print(io.read("a")) io.close(io.input()) io.input(io.stdin) print(pcall(io.close)) print(os.remove(name)) print(select(2, os.remove("/nonexistent/x")))
    print(os.rename("/nonexistent/a", "/nonexistent/b")) local p = io.popen("echo popen; exit 3") print(p:read("a"), p:close()) print(os.execute("exit 4")) print(os.execute("kill -9 $$")) print(os.execute()) print(pcall(io.popen, "x", "bad"))
    print(tostring(io.stdout), io.stderr:write("to stderr\n") == io.stderr) local d = io.open("/tmp") print(d and d:read("a")) print(io.read("l"), io.read("n"), io.read(0)) print(pcall(io.read, "z"))
  ]],
  system = [[
    print(os.date("!%Y-%m-%d %H:%M:%S", 0), os.time({ year = 2000, month = 1, day = 1, hour = 12 }), os.date("!*t", 86400).yday, os.getenv("HOME"), os.getenv("NOT_THERE"), os.setlocale(), os.setlocale("C"), os.setlocale("nothing"))
    print(os.time({ year = 2024, month = 14, day = -3, hour = 0, isdst = false }), os.difftime(10, 5), type(os.clock()), pcall(os.time, { year = "x", month = 1, day = 1 })) print(pcall(os.date, "*t", 1e100)) print(_VERSION, collectgarbage("isrunning"))
    print(collectgarbage("incremental"), collectgarbage("generational"), collectgarbage("stop"), collectgarbage("isrunning"), collectgarbage("restart"), collectgarbage("step"), collectgarbage("collect"), collectgarbage("setpause", 100), type(collectgarbage("count")))
    local weak = setmetatable({}, { __mode = "k" }) weak[{}] = 1 collectgarbage() print(next(weak)) local order = {} for i = 1, 3 do setmetatable({}, { __gc = function() order[#order + 1] = i end }) end collectgarbage() print(table.concat(order, " "))
    for _, lib in ipairs { "string", "table", "math", "io", "os", "debug", "utf8", "package" } do local names = {} for name in pairs(_G[lib]) do names[#names + 1] = name end table.sort(names) print(lib, table.concat(names, " ")) end
    print(getmetatable(_G), getmetatable("").__index == string, getmetatable("").__name, rawequal(_G, _G._G), package.loaded._G == _G, package.loaded.string == string, #package.searchers, type(package.preload))
    print(package.searchpath("not.there", "./?.lua;./?/init.lua")) print(package.searchpath("mod", "./?.lua")) print(require("mod"), package.loaded.mod.name) print(pcall(require, "bad_mod")) print(pcall(require, "bad_syntax_mod")) package.preload.pre = function(...) print("preload", ...) end print(require("pre"))
    print(package.loadlib("/nonexistent.so", "luaopen_x")) print(pcall(require)) package.path = nil print(pcall(require, "zzz"))
  ]],
  debugging = [[
    local function f(a, b, ...) local c = a + b local info = debug.getinfo(1, "nSlutfrL") print(info.name, info.namewhat, info.short_src, info.linedefined, info.currentline, info.nparams, info.isvararg, info.what, info.nups, info.ftransfer) return c end
    f(1, 2, 3) print(debug.getlocal(f, 1), debug.getlocal(f, 3)) local hits = 0 debug.sethook(function(event, line) hits = hits + 1 end, "l") local x = 1
    local y = 2
    debug.sethook() print(hits > 0, debug.gethook()) local events = {} debug.sethook(function(e) events[#events + 1] = e end, "cr") math.abs(1) debug.sethook() print(table.concat(events, " "))
    local count = 0 debug.sethook(function() count = count + 1 end, "", 100) for i = 1, 10000 do end debug.sethook() print(count > 10) print(pcall(function() debug.sethook(function() error("from hook") end, "", 1) for i = 1, 100 do end end)) debug.sethook()
    local up1, up2 = 1, 2 local function g() return up1, up2 end print(debug.getupvalue(g, 1), debug.getupvalue(g, 2), debug.setupvalue(g, 1, 10), g(), debug.getupvalue(g, 3), debug.upvalueid(g, 1) ~= debug.upvalueid(g, 2))
    print(debug.getmetatable("").__index == string, debug.getregistry ~= nil, debug.getuservalue(io.stdout, 1), pcall(debug.setuservalue, 1, 2)) print(pcall(debug.upvalueid, g, 5)) print(debug.getinfo(print).what, debug.getinfo(100), pcall(debug.getinfo, "x"))
    local function traced() print(debug.traceback("here", 1)) end local t = { method = traced } t.method() ; (function() traced() end)() print(pcall(debug.getlocal, 100, 1)) print(debug.getinfo(1, "S").source, debug.getinfo(1, "l").currentline)
    for _, name in ipairs { "string.format", "coroutine.resume", "coroutine.wrap", "table.sort", "print" } do local m, n = name:match("(%w+)%.(%w+)") local fn = m and _G[m][n] or _G[name] print(select(2, xpcall(fn, debug.traceback))) end
    print(select(2, xpcall(coroutine.wrap(function() error("x") end), debug.traceback))) print(select(2, xpcall(function() coroutine.resume() end, debug.traceback)))
  ]],
  environments = [[
    local env = setmetatable({}, { __index = _G }) local f = load("y = 5 return y, _ENV", "e", "t", env) print(f() , env.y, y) do local _ENV = { print = print } print(x) end print(pcall(function() local _ENV = nil return z end)) print(pcall(function() local _ENV = {} return z.a end))
    setmetatable(_G, { __index = function(_, k) return "undefined " .. k end, __newindex = function(t, k, v) rawset(t, k, v) print("new global", k) end }) print(some_name) some_name = 1 print(some_name) print(getmetatable(_G) ~= nil) dofile("return.lua") print(dofile("mod.lua").name)
  ]],
  big_output = [[ for i = 1, 5000 do print(i, ("x"):rep(i % 50)) end io.stderr:write(("e"):rep(10000), "\n") ]],
  arguments = [[ print(arg[0], arg[1], arg[2], arg[3], arg[-1], ...) print(#arg, select("#", ...)) ]],
}
