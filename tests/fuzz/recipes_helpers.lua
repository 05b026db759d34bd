-- recipes_helpers.lua - what the statements of recipes.lua are written in; run first in every host. Everything is
-- captured before a recipe replaces it.

gb = gb or require "gibbous"
-- files are made through gb alone
os, io, debug, package, dofile, loadfile = { clock = os.clock, time = os.time }, nil, nil, nil, nil, nil
F = gb.nn.functional
local host = { apply = apply, lent = lent, loan = loan, revoke = revoke, press = press }
local pcall, error, type, next, pairs, tostring, setmetatable, getmetatable = pcall, error, type, next, pairs, tostring,
  setmetatable, getmetatable
local rawset, rawget, select, collectgarbage, create, resume, status = rawset, rawget, select, collectgarbage,
  coroutine.create, coroutine.resume, coroutine.status
local sort, gmatch, match, tonumber = table.sort, string.gmatch, string.match, tonumber
local globals, G = {}, _G
tried, done = 0, 0 -- statements, and those that ran to their end

local effects, budget, depth, current, again_left, live_table, replaced, tick = {}, {}, 0, nil, 0, nil, {}, 0

-- A program begins with nothing.
function begin()
  effects, budget, depth, live_table, replaced = {}, {}, 0, nil, {}
end

-- Run a statement; what it raises is its own business.
function try(f)
  depth, again_left, current = 0, 2, f
  tried = tried + 1
  local ok, why = pcall(f)
  if ok then done = done + 1 end
  current = nil
  if shows and not ok then shows(tostring(why)) end
end

-- A program ends: what it replaced comes back, and its variables go.
function finish()
  for k = #replaced, 1, -1 do rawset(replaced[k][1], replaced[k][2], replaced[k][3]) end
  for name in pairs(G) do
    if not globals[name] then G[name] = nil end
  end
  begin()
end

-- Effect n does f, so many times.
function effect(n, times, f) effects[n], budget[n] = f, times end

function E(n, ...)
  local f = effects[n]
  if not f or budget[n] <= 0 or depth > 3 then return end
  budget[n], depth = budget[n] - 1, depth + 1
  local ok, result = pcall(f, ...)
  depth = depth - 1
  if not ok then error(result, 0) end
  return result
end

-- The statement that runs, once more from within.
function again()
  if not current or again_left <= 0 then return end
  again_left = again_left - 1
  return current()
end

function co(f)
  local thread = create(f)
  for _ = 1, 3 do
    local ok, why = resume(thread)
    if not ok then error(why, 0) end
    if status(thread) == "dead" then return end
  end
end

-- Free, close or remove what can be.
function close(object)
  for _, name in next, { "free", "close", "remove" } do
    pcall(function() object[name](object) end)
  end
end

function clear(t)
  if type(t) ~= "table" then return end
  for k in next, t do rawset(t, k, nil) end
end

function fill(t, k, v)
  if type(t) == "table" and k ~= nil and k == k then rawset(t, k, v) end
end

function every(f, t)
  if type(t) ~= "table" then return end
  local values = {}
  for _, v in next, t do values[#values + 1] = v end
  for k = 1, #values do f(values[k]) end
end

-- The table that effects look for, or set it.
function live(t)
  if t ~= nil then live_table = t end
  return live_table
end

local function reader(n, hidden)
  local meta = {}
  function meta.__index(_, k)
    local r = E(n, hidden, k)
    if r ~= nil then return r end
    return hidden[k]
  end
  function meta.__newindex(_, k, v)
    E(n, hidden, k)
    hidden[k] = v
  end
  function meta.__len()
    return E(n, hidden) or #hidden
  end
  function meta.__pairs()
    E(n, hidden)
    return next, hidden, nil
  end
  function meta.__call(_, ...)
    E(n, hidden)
    return ...
  end
  function meta.__tostring() return E(n, hidden) or "lie" end
  function meta.__eq() return E(n, hidden) end
  function meta.__close() E(n, hidden) end
  return meta
end

-- Table t, made to lie: see the names. The effect n is what its metamethods do.
function W(kind, n, t)
  if type(t) ~= "table" then return t end
  local mode, wait = match(kind, "^([kv]+)(%d)$")
  if mode then
    host.press(tonumber(wait), 12)
    if getmetatable(t) == nil then return setmetatable(t, { __mode = mode }) end
    local copy = {}
    for k, v in next, t do copy[k] = v end
    return setmetatable(copy, { __mode = mode })
  end
  if kind == "index" then return setmetatable({}, reader(n, t)) end
  if kind == "half" or kind == "hole" then -- some entries are behind __index, or nowhere
    local hidden, at = {}, 0
    for k, v in next, t do
      at = at + 1
      if at % 2 == 0 then hidden[k] = v end
    end
    for k in next, hidden do rawset(t, k, nil) end
    if kind == "hole" then return t end
    local meta = reader(n, hidden)
    meta.__mode = n % 2 == 0 and "v" or nil
    return setmetatable(t, meta)
  end
  if kind == "len" then
    local size = #t
    return setmetatable(t, { __len = function() return E(n, t) or size + 1 end, __metatable = n % 3 == 0 and 5 or nil })
  end
  if kind == "gc" then
    pcall(setmetatable, t, { __gc = function(self) E(n, self) end })
    return t
  end
  if kind == "self" then
    t[#t + 1], t.self = t, t
    return t
  end
  live_table = t
  return t
end

-- What stands in for an object: reads go on to it, after the effect. With fields it has its own, too.
function O(n, object, with_fields)
  local t, methods = {}, {}
  if with_fields and type(object) == "table" then
    for k, v in next, object do t[k] = v end
  end
  local meta = reader(n, {})
  function meta.__index(_, k)
    local r = E(n, object, k)
    if r ~= nil then return r end
    local v = object[k]
    if type(v) ~= "function" or with_fields then return v end
    methods[k] = methods[k] or function(_, ...) return v(object, ...) end
    return methods[k]
  end
  function meta.__newindex(_, k, v)
    E(n, object, k)
    object[k] = v
  end
  function meta.__call(_, ...) return object(...) end
  return setmetatable(t, meta)
end

-- Garbage whose finaliser does effect n, twice.
function bomb(n)
  local function arm(left)
    pcall(setmetatable, {}, { __gc = function()
      if left > 0 then arm(left - 1) end
      E(n)
    end })
  end
  arm(1)
end

local function sorted_keys(t)
  local keys = {}
  for k in next, t do keys[#keys + 1] = k end
  sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- The n-th field of a table, whatever it is.
function peek(t, n)
  if type(t) ~= "table" then return t end
  local keys = sorted_keys(t)
  return t[keys[(n - 1) % (#keys > 0 and #keys or 1) + 1]]
end

function poke(t, n, v)
  if type(t) ~= "table" then return end
  local keys = sorted_keys(t)
  local k = keys[(n - 1) % (#keys > 0 and #keys or 1) + 1]
  if k ~= nil then rawset(t, k, v) end
end

function call(f, ...) return f(...) end

-- f(f(f(start))), n deep.
function chain(start, n, f)
  local c = start
  for _ = 1, n do
    local link = f(c)
    if link == nil then return c end
    c = link
  end
  return c
end

-- A library function runs effect n first, instead, or after itself; or is gone.
function tamper(path, n, way)
  local t, last = G, nil
  for name in gmatch(path, "[^.]+") do
    if last then t = t[last] end
    last = name
  end
  local original = rawget(t, last)
  replaced[#replaced + 1] = { t, last, original }
  local function instead(...)
    if way == "after" then
      local a, b, c = original(...)
      E(n, ...)
      return a, b, c
    end
    local r = E(n, ...)
    if way == "instead" or r ~= nil then return r end
    return original(...)
  end
  if way == "gone" then instead = nil end
  rawset(t, last, instead)
end

for name in pairs(G) do globals[name] = true end
for _, name in next, { "c", "x" } do globals[name] = nil end
