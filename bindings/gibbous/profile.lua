-- profile.lua - gb.profile: where the time of a function went, as tables and as a trace. The engine's profile
-- (watch/profile.h) notes when what began and ended; here times are added up, named and written.

local gb, native = ...
local own, private, class_name = native.own, native.private, native.class_name
local format, concat, sort = string.format, table.concat, table.sort
local floor, max, min = math.floor, math.max, math.min
local json_encode, bytes_text = gb.io.json_encode, native.bytes_text

local categories = { "parameters", "gradients", "optimizer", "weight_copies", "saved", "other", "scratch" }

-- {==== which module runs ==== --

-- the profile that runs: { names = by number, numbers = by module, paths = by module }
local current

local leaving = { __close = function(before)
  if current == before[2] then native.profile_module(before[1]) end
end }

-- Told of each call of a module: gives what ends it.
function native.enter_profiled(module)
  if not current then return nil end
  local number = current.numbers[module]
  if not number then
    number = #current.names + 1
    current.names[number] = current.paths[module] or class_name(module)
    current.numbers[module] = number
  end
  return setmetatable({ native.profile_module(number), current }, leaving)
end

-- ====} --

-- {==== adding up ==== --

-- Is it an op or a step, and no range or view around others?
local function is_work(e) return e.phase ~= nil end

-- What each event took without those within it, and on the device; where the ops of backward come from.
local function settle(events, names)
  local made = {} -- the op of the forward pass that made a node
  for i, e in ipairs(events) do
    e.seconds = e.finish - e.start
    e.self = (e.self or 0) + e.seconds
    e.kernel = (e.kernel or 0) + (e.device and e.kernel_finish - e.kernel_start or 0)
    local around = events[e.parent]
    if around then
      around.self = (around.self or around.seconds) - e.seconds
      if e.device and around.device then around.kernel = around.kernel - (e.kernel_finish - e.kernel_start) end
    end
    -- of ops within one another the innermost makes the node
    if e.node and e.phase == "forward" and e.kind ~= "composite" then made[e.node] = made[e.node] or i end
  end
  for _, e in ipairs(events) do
    local from = e.phase == "backward" and e.node and made[e.node]
    e.from = from or nil
    local source = from and events[from] or e
    e.place = { module = names[source.module] or "-", line = source.line ~= "" and source.line or "-" }
    if e.phase == "backward" and not from then e.place.line = "-" end
  end
end

-- Rows by the key of each event, the largest first.
local function table_of(events, key_of, add)
  local rows, known = {}, {}
  for _, e in ipairs(events) do
    if is_work(e) then
      local key = key_of(e)
      local row = known[key]
      if not row then
        row = { place = #rows + 1, self = 0, kernel = 0 }
        rows[row.place], known[key] = row, row
      end
      row.self, row.kernel = row.self + e.self, row.kernel + e.kernel
      add(row, e)
    end
  end
  sort(rows, function(a, b)
    local x, y = max(a.self, a.kernel), max(b.self, b.kernel)
    return x > y or x == y and a.place < b.place
  end)
  for _, row in ipairs(rows) do row.place = nil end
  return rows
end

local function ops_of(events)
  return table_of(events, function(e) return e.name .. " " .. e.phase end, function(row, e)
    row.op, row.phase = e.name, e.phase
    row.calls, row.seconds = (row.calls or 0) + 1, (row.seconds or 0) + e.seconds
  end)
end

-- By "module" or "line".
local function places_of(events, what)
  return table_of(events, function(e) return e.place[what] end, function(row, e)
    row[what] = e.place[what]
    row.forward, row.backward = row.forward or 0, row.backward or 0
    row.recompute, row.step = row.recompute or 0, row.step or 0
    row[e.phase] = row[e.phase] + e.self
  end)
end

local function memory_of(events)
  local most, total = {}, 0
  for _, name in ipairs(categories) do most[name] = 0 end
  for _, e in ipairs(events) do
    local sum = 0
    for i, bytes in ipairs(e.live or {}) do
      most[categories[i]], sum = max(most[categories[i]], bytes), sum + bytes
    end
    total = max(total, sum)
  end
  return most, total
end

-- ====} --

-- {==== the text ==== --

local Report = { __name = "gb.profile" }

local function ms(seconds) return format("%.3f", 1e3 * seconds) end

-- Rows as text; columns: { heading, cell of a row, to the left? }.
local function add_table(lines, rows, most, columns)
  local cells, widths = {}, {}
  for c, column in ipairs(columns) do widths[c] = #column[1] end
  for i = 1, min(#rows, most) do
    cells[i] = {}
    for c, column in ipairs(columns) do
      cells[i][c] = column[2](rows[i])
      widths[c] = max(widths[c], utf8.len(cells[i][c]) or #cells[i][c])
    end
  end
  local function line(texts)
    local parts = {}
    for c, column in ipairs(columns) do parts[c] = native.pad(texts[c], widths[c], not column[3]) end
    lines[#lines + 1] = (string.gsub("  " .. concat(parts, "  "), " +$", ""))
  end
  local headings = {}
  for c, column in ipairs(columns) do headings[c] = column[1] end
  lines[#lines + 1] = ""
  line(headings)
  for _, row in ipairs(cells) do line(row) end
  if #rows > most then lines[#lines + 1] = format("  and %d more", #rows - most) end
end

function Report:__tostring()
  local mine = private(self, "profile")
  if not mine then return "report of gb.profile" end
  local report, whole = mine.report, max(mine.report.seconds, 1e-12)
  local phases, kernels, in_ops = { forward = 0, backward = 0, recompute = 0, step = 0 }, 0, 0
  for _, row in ipairs(report.ops) do
    phases[row.phase], in_ops = phases[row.phase] + row.self, in_ops + row.self
    kernels = kernels + row.kernel
  end
  local lines = { format("%.4g ms: %d ops; forward %.0f %%, backward %.0f %%, recompute %.0f %%, step %.0f %%, Lua \z
    and the rest %.0f %%", 1e3 * report.seconds, report.calls, 100 * phases.forward / whole,
    100 * phases.backward / whole, 100 * phases.recompute / whole, 100 * phases.step / whole,
    100 * max(0, 1 - in_ops / whole)) }
  if report.lost > 0 then lines[#lines + 1] = format("%d events found no room; ask for more events", report.lost) end
  local function share(row) return format("%.1f", 100 * row.self / whole) end
  local function kernel(row) return row.kernel > 0 and ms(row.kernel) or "" end
  local ops = { { "op", function(r) return r.op end, true }, { "phase", function(r) return r.phase end, true },
    { "calls", function(r) return format("%d", r.calls) end }, { "ms", function(r) return ms(r.self) end },
    { "%", share }, { "us a call", function(r) return format("%.1f", 1e6 * r.self / r.calls) end },
    { "with inner ms", function(r) return ms(r.seconds) end } }
  local function place_columns(what)
    return { { what, function(r) return r[what] end, true }, { "ms", function(r) return ms(r.self) end },
      { "%", share }, { "forward ms", function(r) return ms(r.forward) end },
      { "backward ms", function(r) return ms(r.backward) end } }
  end
  local by_module, by_line = place_columns("module"), place_columns("line")
  if kernels > 0 then
    lines[1] = lines[1] .. format("; kernels on the device %.4g ms", 1e3 * kernels)
    for _, columns in ipairs { ops, by_module, by_line } do columns[#columns + 1] = { "kernels ms", kernel } end
  end
  add_table(lines, report.ops, mine.rows, ops)
  add_table(lines, report.modules, mine.rows, by_module)
  add_table(lines, report.lines, mine.rows, by_line)
  local parts = {}
  for _, name in ipairs(categories) do
    if report.memory[name] > 0 then parts[#parts + 1] = name .. " " .. bytes_text(report.memory[name]) end
  end
  lines[#lines + 1] = ""
  lines[#lines + 1] = format("  memory at most: %s; together %s", #parts > 0 and concat(parts, ", ") or "none",
    bytes_text(report.memory_total))
  return concat(lines, "\n")
end

-- ====} --

-- {==== the trace ==== --

local PROCESS, HOST, DEVICES = 1, 1, 10 -- of the trace; a device's row is the tenth, eleventh, ...

-- Nanoseconds as the trace's microseconds. Whole ones are compared, so that what lies within another still does.
local function ns(seconds) return floor(1e9 * seconds) end
local function us(nanoseconds) return format("%d.%03d", nanoseconds // 1000, nanoseconds % 1000) end

local function complete(name, category, tid, from, to, arguments)
  return format('{"name":%s,"cat":"%s","ph":"X","ts":%s,"dur":%s,"pid":%d,"tid":%d%s}', json_encode(name), category,
    us(ns(from)), us(ns(to) - ns(from)), PROCESS, tid, arguments and ',"args":' .. json_encode(arguments) or "")
end

local function named(tid, name)
  return format('{"name":"thread_name","ph":"M","pid":%d,"tid":%d,"args":{"name":%s}},\n\z
    {"name":"thread_sort_index","ph":"M","pid":%d,"tid":%d,"args":{"sort_index":%d}}', PROCESS, tid, json_encode(name),
    PROCESS, tid, tid)
end

-- The arrow from an op of the forward pass to the first op of its gradient.
local function flow(number, from, to)
  local text = '{"name":"gradient","cat":"gradient","ph":"%s","id":%d,"ts":%s,"pid":%d,"tid":%d%s}'
  return format(text, "s", number, us(ns(from.start)), PROCESS, HOST, "") .. ",\n" ..
    format(text, "f", number, us(ns(to.start)), PROCESS, HOST, ',"bp":"e"')
end

local function counter(e)
  local arguments = {}
  for i, bytes in ipairs(e.live) do arguments[categories[i]] = bytes end
  return format('{"name":"bytes in tensors","ph":"C","ts":%s,"pid":%d,"args":%s}', us(ns(e.finish)), PROCESS,
    json_encode(arguments))
end

-- Text that JSON can hold.
local function clean(text) return utf8.len(text) and text or string.gsub(text, "[\128-\255]", "?") end

local function trace_of(events)
  local parts, rows, reached, last = {
    format('{"name":"process_name","ph":"M","pid":%d,"args":{"name":"gibbous"}}', PROCESS), named(HOST, "ops") },
    {}, {}, nil
  for i, e in ipairs(events) do
    local arguments = is_work(e) and { phase = e.phase, line = clean(e.place.line), module = clean(e.place.module) }
    parts[#parts + 1] = complete(clean(e.name), e.phase or "range", HOST, e.start, e.finish, arguments or nil)
    if e.device then
      if not rows[e.device] then
        rows[#rows + 1] = e.device
        rows[e.device] = DEVICES + #rows - 1
        parts[#parts + 1] = named(rows[e.device], "kernels of " .. e.device)
      end
      parts[#parts + 1] = complete(e.name, "kernel", rows[e.device], e.kernel_start, e.kernel_finish, arguments)
    end
    if e.from and e.kind ~= "composite" and not reached[e.from] then
      reached[e.from] = true
      parts[#parts + 1] = flow(i, events[e.from], e)
    end
    local live = e.live and concat(e.live, " ")
    if live and live ~= last then parts[#parts + 1], last = counter(e), live end
  end
  return '{"displayTimeUnit":"ms","traceEvents":[\n' .. concat(parts, ",\n") .. "\n]}\n"
end

-- ====} --

function native.late.profile(fn, options)
  local state = { names = {}, numbers = {}, paths = {} }
  if options.model then
    for _, entry in ipairs(native.module_paths(options.model)) do
      state.paths[entry[1]] = entry[3] ~= "" and entry[3] or class_name(options.model)
    end
  end
  local _ <close> = setmetatable({}, { __close = function() current = current ~= state and current or nil end })
  local events, seconds, lost = native.profile(function()
    current = state
    fn()
  end, options.events)
  settle(events, state.names)
  local report = { seconds = seconds, lost = lost, calls = 0, ops = ops_of(events),
    modules = places_of(events, "module"), lines = places_of(events, "line") }
  for _, row in ipairs(report.ops) do report.calls = report.calls + row.calls end
  report.memory, report.memory_total = memory_of(events)
  if options.file then native.write_file(options.file, trace_of(events)) end
  own(setmetatable(report, Report), "profile", { report = native.copy(report, true), rows = options.rows })
  if options.print then print(tostring(report)) end
  return report
end
