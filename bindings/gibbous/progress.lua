-- progress.lua - gb.progress: a bar on a terminal, one plain line per interval elsewhere; gb.plot: a curve drawn in text.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

-- gb.clock() -> number: Seconds of a clock that only goes forward, for measuring. Example: local started = gb.clock()
gb.clock = native.clock

-- gb.time(fn: function, ...) -> number, any: The seconds that fn(...) took, devices waited for before and after, and what it returned.
-- Example: local seconds, y = gb.time(model, x)
function gb.time(fn, ...)
  local meta = getmetatable(fn)
  if type(fn) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail(("time takes a function to call, got %s"):format(gb.is_tensor(fn) and "a tensor" or type(fn)))
  end
  native.synchronize()
  local started = native.clock()
  local results = table.pack(fn(...))
  native.synchronize()
  return native.clock() - started, table.unpack(results, 1, results.n)
end

-- Is value what an option of this kind takes? A size is a whole number that fits a screen, or a very large one.
local function fits(value, kind)
  if kind == "size" then return math.type(value) == "integer" and value >= 1 and value <= 1000 end
  return type(value) == kind
end

local kinds = { size = "a whole number from 1 to 1000", number = "a number", string = "a string", boolean = "true or false" }

-- The table of options, their names and kinds checked.
local function options_of(options, known, who)
  if options == nil then return {} end
  if type(options) ~= "table" then fail(("%s takes its options in a table, got %s"):format(who, type(options))) end
  for key, value in pairs(options) do
    if not known[key] then fail(("%s has no option '%s'%s"):format(who, tostring(key), native.nearest(tostring(key), known))) end
    if not fits(value, known[key]) then
      fail(("%s: '%s' must be %s, got %s"):format(who, key, kinds[known[key]], type(value) == "number" and tostring(value) or type(value)))
    end
  end
  return options
end

local function duration(seconds)
  if seconds ~= seconds or seconds == math.huge then return "?" end
  seconds = math.floor(seconds + 0.5)
  if seconds >= 3600 then return ("%d:%02d:%02d"):format(seconds // 3600, seconds // 60 % 60, seconds % 60) end
  return ("%d:%02d"):format(seconds // 60, seconds % 60)
end

-- A value as shown: tensors as their number, scalers as their scale.
local function shown(value)
  if gb.is_tensor(value) then value = value:item() end
  if type(value) == "table" or type(value) == "userdata" then
    value = value.get_scale and value:get_scale() or tostring(value)
  end
  if math.type(value) == "float" then return (math.abs(value) >= 1e4 or value == 0) and ("%.0f"):format(value) or ("%.4g"):format(value) end
  return tostring(value)
end

local Bar = {}
Bar.__index = Bar
native.classes.progress = Bar

-- One line of text: title, share, speed, time left, and the values given.
local function line_of(self)
  local elapsed = native.clock() - self.started
  local rate = elapsed > 0 and self.done / elapsed or 0
  local parts = { ("%s %d/%d"):format(self.title, self.done, self.total) }
  for _, name in ipairs(self.names) do parts[#parts + 1] = name .. " " .. shown(self.values[name]) end
  if self.unit_size then parts[#parts + 1] = ("%.0f %s/s"):format(rate * self.unit_size, self.unit)
  else parts[#parts + 1] = ("%.3g it/s"):format(rate) end
  parts[#parts + 1] = "left " .. duration(rate > 0 and (self.total - self.done) / rate or math.huge)
  return table.concat(parts, "  ")
end

-- A line of a log, which is read while the run goes on.
local function log(text)
  print(text)
  native.flush()
end

-- Tell the program around, if there is one that listens; else false.
local function tell(self)
  local values = self.values
  local scaler = values.scale
  if gb.is_tensor(values.loss) then values.loss = values.loss:item() end
  local is_scaler = type(scaler) == "userdata" and not gb.is_tensor(scaler) and scaler.get_scale
  return native.event(self.title, self.done, self.total, values.loss, is_scaler and scaler:get_scale(), is_scaler and scaler:stats().skipped)
end

local function draw(self)
  local text = line_of(self)
  if not self.terminal then
    log(text)
    return
  end
  local width = 20
  local full = math.min(width, math.floor(width * self.done / math.max(self.total, 1)))
  io.stderr:write(("\r\27[?7l\27[K[%s%s] %s\27[?7h"):format(("#"):rep(full), ("."):rep(width - full), text)) -- ?7: no second line on a narrow screen
  io.stderr:flush()
end

-- progress:update(n?: int, values?: table): n more steps are done; values, a table by name, are shown. Reading a tensor waits for it, so values are
-- read only when the line is drawn. Example: local bar = gb.progress(1, "epoch") bar:update(1, { loss = 0.5 }) bar:close()
function Bar:update(n, values)
  if n ~= nil and type(n) ~= "number" then fail(("progress:update takes the number of steps done, got %s"):format(type(n))) end
  if values ~= nil and type(values) ~= "table" then fail(("progress:update takes a table of values, got %s"):format(type(values))) end
  self.done = self.done + (n or 1)
  if values then
    for name in pairs(values) do
      if self.values[name] == nil then
        self.names[#self.names + 1] = name
        table.sort(self.names, function(a, b) return (a == "loss" and "" or a) < (b == "loss" and "" or b) end)
      end
      self.values[name] = values[name]
    end
  end
  local now = native.clock()
  if self.told then
    tell(self)
  elseif now - self.drawn >= self.interval then
    draw(self)
    self.drawn = now
    for name, value in pairs(self.values) do
      if gb.is_tensor(value) then self.values[name] = value:item() end
    end
  end
end

-- progress:close(text?: string): End the bar with a last line of text. Example: gb.progress(0, "epoch"):close("done")
function Bar:close(text)
  if self.closed then return end
  self.closed = true
  local finished = ("%s  %s in %s"):format(self.title, text or "done", duration(native.clock() - self.started))
  if self.terminal then
    io.stderr:write("\r\27[K")
    io.stderr:flush()
  end
  log(finished)
end

-- gb.progress(total: int, title?: string, options?: table) -> progress: A bar over total steps on a terminal, one plain line per interval elsewhere.
-- options: unit and unit_size (for example "tokens" and 768 per step), interval in seconds between plain lines. Example: local bar = gb.progress(0,
-- "epoch 1") bar:close()
function gb.progress(total, title, options)
  if math.type(total) ~= "integer" or total < 0 then fail(("progress takes the number of steps, a whole number, got %s"):format(tostring(total))) end
  options = options_of(options, { unit = "string", unit_size = "number", interval = "number" }, "progress")
  local terminal = native.is_terminal()
  local bar = setmetatable({ total = total, title = title or "", done = 0, names = {}, values = {}, started = native.clock(), drawn = native.clock(),
                             terminal = terminal, interval = terminal and 0.1 or options.interval or 10, unit = options.unit,
                             unit_size = options.unit_size }, Bar)
  bar.told = tell(bar)
  return bar
end

-- {==== plot ====

-- Average points into `width` columns.
local function columns_of(points, width)
  local columns = {}
  for c = 1, math.min(width, #points) do
    local first, last = (c - 1) * #points // math.min(width, #points) + 1, c * #points // math.min(width, #points)
    local sum = 0
    for i = first, last do sum = sum + points[i] end
    columns[c] = sum / (last - first + 1)
  end
  return columns
end

-- gb.plot(points, options?: table) -> string: Draw numbers (a list, or a tensor) as a curve. options: width = 64, height = 12, title, quiet. Returns
-- the text; prints it unless quiet. Example: gb.plot({ 3, 2, 1 }, { title = "loss" })
function gb.plot(points, options)
  options = options_of(options, { width = "size", height = "size", title = "string", quiet = "boolean" }, "plot")
  if gb.is_tensor(points) then points = points:tolist() end
  if type(points) ~= "table" or #points == 0 then fail("plot: there are no points; give a list of numbers or a vector") end
  for i = 1, #points do
    local y = points[i]
    if type(y) ~= "number" then fail(("plot: points are numbers, but [%d] is a %s"):format(i, type(y))) end
  end
  local width, height = options.width or 64, options.height or 12
  local columns = columns_of(points, width)
  local low, high = math.huge, -math.huge
  for _, y in ipairs(columns) do
    if y == y and math.abs(y) ~= math.huge then low, high = math.min(low, y), math.max(high, y) end
  end
  if low > high then low, high = 0, 1 end
  local span = high > low and high - low or 1
  local lines = options.title and { options.title } or {}
  for row = height, 1, -1 do
    local cells = {}
    for c, y in ipairs(columns) do
      local at = math.floor((y - low) / span * (height - 1) + 0.5) + 1
      cells[c] = at == row and "*" or " "
    end
    local label = row == height and ("%8.3f"):format(high) or row == 1 and ("%8.3f"):format(low) or (" "):rep(8)
    lines[#lines + 1] = label .. " |" .. table.concat(cells):gsub("%s+$", "")
  end
  lines[#lines + 1] = (" "):rep(8) .. " +" .. ("-"):rep(#columns)
  lines[#lines + 1] = (" "):rep(10) .. "1" .. (" "):rep(math.max(#columns - 1 - #tostring(#points), 1)) .. #points
  local text = table.concat(lines, "\n")
  if not options.quiet then print(text) end
  return text
end

-- ====}
