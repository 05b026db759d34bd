-- time.lua - gb.time: how long a call takes.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

-- What was started on other devices is done.
local function synchronize()
  if gb.cuda.is_available() then gb.cuda.synchronize() end
end

local function finish(started, ...)
  synchronize()
  return native.clock() - started, ...
end

-- Seconds that fn(...) takes, devices synchronised before and after, and then its results.
function gb.time(fn, ...)
  local meta = getmetatable(fn)
  if type(fn) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail(("time: expects a function to call, got %s"):format(type(fn)))
  end
  synchronize()
  return finish(native.clock(), fn(...))
end
