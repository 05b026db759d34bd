-- progress.lua - gb.progress: a bar on a terminal, one plain line per interval elsewhere; gb.clock and gb.time.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, match, rep, concat, unpack = string.format, string.match, string.rep, table.concat, table.unpack
local sort = table.sort
local floor, abs, min, max, huge = math.floor, math.abs, math.min, math.max, math.huge
local clock, stderr = native.clock, io and io.stderr

gb.clock = define("gb.clock() -> number: Seconds of a clock that only goes forward, for measuring. Example: local \z
  started = gb.clock()", "strict",
  clock)

gb.time = define("gb.time(fn: function, arguments...: any) -> number, any: The seconds that fn(...) took, devices \z
  waited for before and after, and what it returned. Example: local seconds, y = gb.time(model, x)", "strict",
  function(fn, ...)
  native.synchronize()
  local started = clock()
  local results = table.pack(fn(...))
  native.synchronize()
  return clock() - started, unpack(results, 1, results.n)
end)

-- Seconds of "DD:HH:MM:SS", of fewer parts, or of a number; above 0. what: the value, for errors.
function native.seconds_of(what, value)
  local seconds = value
  if type(value) == "string" then
    local sizes, total, rest = { 1, 60, 3600, 86400 }, 0, value
    for i = 1, 4 do
      local head, part = match(rest, "^(.-):?(%d+)$")
      if not part then break end
      total, rest = total + tonumber(part) * sizes[i], head
    end
    seconds = rest == "" and value ~= "" and total
  end
  if type(seconds) ~= "number" or not (seconds > 0 and seconds < huge) then
    fail(format("%s must be seconds above 0, or a text such as \"00:12:00:00\" (days, hours, minutes, seconds), got %s",
      what, native.shown(value)))
  end
  return seconds
end

gb.seconds = define("gb.seconds(time: string|number) -> number: How many seconds a text such as \"12:00:00\" is: \z
  days, hours, minutes and seconds, of which the first may be missing. Errors: a text of another form, a time that is \z
  not above 0. Example: local ends = gb.clock() + gb.seconds(\"12:00:00\")", "strict",
  function(time) return native.seconds_of("seconds: 'time'", time) end)

gb.throughput = define("gb.throughput(; window: size = 100) -> function: A function to call after each step with how \z
  many samples (or tokens) it had; it returns how many there were a second over the last window steps, or nil at \z
  first. Example: local speed = gb.throughput() speed(64) print(speed(64))", "strict", function(options)
  local times, counts, sum, last = {}, {}, 0, 0
  return function(count)
    if type(count) ~= "number" then
      fail(format("throughput: the samples of a step are a number, got a %s", type(count)))
    end
    last = last + 1
    times[last], counts[last], sum = clock(), count, sum + count
    local first = max(last - options.window, 1)
    if first > 1 then times[first - 1] = nil end
    if counts[first] then sum, counts[first] = sum - counts[first], nil end -- was before the time that it is since
    local elapsed = times[last] - times[first]
    return elapsed > 0 and sum > 0 and sum / elapsed or nil
  end
end)

local function duration(seconds)
  if seconds ~= seconds or seconds == huge then return "?" end
  seconds = floor(seconds + 0.5)
  if seconds >= 3600 then return format("%d:%02d:%02d", seconds // 3600, seconds // 60 % 60, seconds % 60) end
  return format("%d:%02d", seconds // 60, seconds % 60)
end

-- A value as shown: tensors as their number, scalers as their scale.
local function shown(value)
  if gb.is_tensor(value) then value = value:item() end
  value = native.scale_of(value) or value
  if value ~= value then return "nan" end -- whatever its sign
  if math.type(value) == "float" then return (abs(value) >= 1e4 or value == 0) and format("%.0f", value) or
    format("%.4g", value) end
  return tostring(value)
end

-- What is private of a bar: total, title, done, names and values (what is shown), started and drawn (times), terminal,
-- interval, unit, unit_size, told (the program around listens), closed.
local Bar = { __name = "gb.progress" }
Bar.__index = Bar
native.classes.progress = Bar
Bar.__tostring = function(self)
  local mine = private(self, "progress")
  return mine and format("progress %s %d/%d", mine.title, mine.done, mine.total) or "progress"
end

-- One line of text: title, share, speed, time left, and the values given.
local function line_of(bar)
  local elapsed = clock() - bar.started
  local rate = elapsed > 0 and bar.done / elapsed or 0
  local parts = { format("%s %d/%d", bar.title, bar.done, bar.total) }
  for _, name in ipairs(bar.names) do parts[#parts + 1] = name .. " " .. shown(bar.values[name]) end
  if bar.unit_size then parts[#parts + 1] = format("%.0f %s/s", rate * bar.unit_size, bar.unit or "units")
  else parts[#parts + 1] = format("%.3g it/s", rate) end
  parts[#parts + 1] = "left " .. duration(rate > 0 and (bar.total - bar.done) / rate or huge)
  return concat(parts, "  ")
end

-- A line of a log, which is read while the run goes on.
local function log(text)
  print(text)
  native.flush()
end

-- Tell the program around how far something is, with all values that are numbers; false where nobody listens.
function native.tell(title, done, total, values)
  local names, numbers = {}, {}
  for name, value in next, values do
    if gb.is_tensor(value) then
      value = value:item()
      values[name] = value
    end
    numbers[name] = native.scale_of(value) or type(value) == "number" and value or nil
    if numbers[name] then names[#names + 1] = name end
  end
  sort(names)
  for i, name in ipairs(names) do numbers[i] = numbers[name] end
  local _, skipped = native.scale_of(values.scale)
  return native.event(title, done, total, numbers.loss, numbers.scale, skipped or values.skipped, names, numbers)
end

local function tell(bar) return native.tell(bar.title, bar.done, bar.total, bar.values) end

local function draw(bar)
  local text = line_of(bar)
  if not bar.terminal then
    log(text)
    return
  end
  local width = 20
  local full = max(0, min(width, floor(width * bar.done / max(bar.total, 1))))
  -- ?7: no second line on a narrow screen
  stderr:write(format("\r\27[?7l\27[K[%s%s] %s\27[?7h", rep("#", full), rep(".", width - full), text))
  stderr:flush()
end

-- The loss first, then the names in their order.
local function before(a, b) return (a == "loss" and "" or a) < (b == "loss" and "" or b) end

-- Take the values of an update.
local function take(bar, values)
  for name, value in next, values do
    if type(name) ~= "string" then
      fail(format("progress:update takes values by name, but one has a %s for a name", type(name)))
    end
    if bar.values[name] == nil then
      bar.names[#bar.names + 1] = name
      table.sort(bar.names, before)
    end
    bar.values[name] = value
  end
end

Bar.update = define("progress:update(n: int = 1, values?: table): n more steps are done; values, a table by name, \z
  are shown. Reading a tensor waits for it, so values are read only when the line is drawn. Example: local bar = \z
  gb.progress(1, \"epoch\") bar:update(1, { loss = 0.5 }) bar:close()",
  "strict", function(self, n, values)
    local bar = private(self, "progress")
    bar.done = bar.done + n
    if values then take(bar, values) end
    local now = clock()
    if bar.told then
      tell(bar)
    elseif now - bar.drawn >= bar.interval then
      draw(bar)
      bar.drawn = now
      for name, value in next, bar.values do
        if gb.is_tensor(value) then bar.values[name] = value:item() end
      end
    end
  end)

Bar.close = define("progress:close(text: string = \"done\"): End the bar with a last line of text. Example: \z
  gb.progress(0, \"epoch\"):close(\"over\")",
  "strict", function(self, text)
    local bar = private(self, "progress")
    if bar.closed then return end
    bar.closed = true
    local finished = format("%s  %s in %s", bar.title, text, duration(clock() - bar.started))
    if bar.terminal then
      stderr:write("\r\27[K")
      stderr:flush()
    end
    log(finished)
  end)

gb.progress = define("gb.progress(total: count, title: string = \"\"; unit?: string, unit_size?: number, interval: \z
  number = 10) -> progress: A bar over total steps on a terminal, one plain line per interval elsewhere. unit and \z
  unit_size say what a step is worth, for example \"tokens\" and 768; interval is in seconds, between plain lines. \z
  Example: local bar = gb.progress(0, \"epoch 1\") bar:close()", "strict",
  function(total, title, options)
    local terminal = stderr ~= nil and native.is_terminal()
    local now = clock()
    local bar = { total = total, title = title, done = 0, names = {}, values = {}, started = now, drawn = now,
      terminal = terminal,
      interval = terminal and 0.1 or options.interval, unit = options.unit, unit_size = options.unit_size }
    bar.told = tell(bar)
    return own(setmetatable({}, Bar), "progress", bar)
  end)
