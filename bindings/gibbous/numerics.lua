-- numerics.lua - gb.amp.numerics: what a floating format would lose of a tensor, and where its exponents lie. The op
-- counts; this shows.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, match, rep, concat, unpack = string.format, string.match, string.rep, table.concat, table.unpack
local floor, ceil, log, min, max, huge = math.floor, math.ceil, math.log, math.min, math.max, math.huge
local amp = gb.amp
local named_parameters = gb.nn.Module.named_parameters

local ROWS, WIDTH = 24, 40 -- of a histogram, at most; of its longest bar
local names = { "zero", "infinite", "nan", "flushed", "subnormal", "overflowed" }

-- What is private of a record: all that it shows.
local Record = {}
Record.__index = Record
Record.__name = "gb.numerics"
native.classes.numerics = Record

-- The records of many tensors: { name =, value =, grad = }. Private: entries, a list of the same.
local Report = {}
Report.__name = "gb.numerics of tensors"

local function share(count, numel) return numel > 0 and count / numel or 0 end

-- A record of what was counted.
function native.numerics_record(counted)
  for _, name in ipairs(names) do counted[name] = share(counted.counts[name], counted.numel) end
  return own(setmetatable(counted, Record), "numerics", copy(counted, true))
end

-- The record of one tensor. A histogram is made on one process as a rule, so nothing is exchanged for it.
local function survey(x, form, name)
  if native.is_part(x) then
    fail(format("amp.numerics: this process has only its part of %s, since the optimizer shares gradients out; make \z
      it with gb.optim.Sharded(optimizer, { gradients = \"whole\" })", name or "this gradient"))
  end
  return native.numerics_record(native.numerics(x, form))
end

-- The least and the largest exponent that occur, or nothing.
local function exponent_range(record)
  local least, most
  for e in next, record.exponents do
    least, most = min(e, least or e), max(e, most or e)
  end
  return least, most
end

-- What rounding to the format makes of magnitudes from 2^e up to the next power of two, but for those that a tie or a
-- carry takes further.
local function fate(form, e)
  local bits, least, most = native.float_format(form)
  return e < least - bits and "flushed" or e < least and "subnormal" or e > most and "overflowed" or nil
end

-- The shares of a record if its elements were multiplied by 2^shift.
local function at_shift(record, shift)
  local counts = { flushed = 0, subnormal = 0, overflowed = 0 }
  for e, count in next, record.exponents do
    local name = fate(record.format, e + shift)
    if name then counts[name] = counts[name] + count end
  end
  for name, count in next, counts do counts[name] = share(count, record.numel) end
  return counts
end

Record.at_scale = define("numerics:at_scale(scale: number) -> table: flushed, subnormal and overflowed, as shares, \z
  if every element were multiplied by a power of two. Estimated from the histogram: exact but for values within half \z
  a step of a boundary, and for float64 ones beyond the range of float32, which share its end bins. Errors: a scale \z
  that is no power of two. Example: print(gb.amp.numerics(gb.rand(9)):at_scale(2^16).flushed)", "strict",
  function(self, scale)
  local shift = scale > 0 and scale < huge and floor(log(scale, 2) + 0.5)
  if not shift or 2.0 ^ shift ~= scale then
    fail(format("numerics:at_scale: the scale must be a power of two, got %s", tostring(scale)))
  end
  return at_shift(private(self, "numerics"), shift)
end)

Record.advise = define("numerics:advise() -> number: The largest power of two, 2^127 at most, by which elements may \z
  be multiplied so that the largest exponent stays two below the format's: for gradients, a static loss scale. nil \z
  where no element is finite and above 0. Example: print(gb.amp.numerics(gb.rand(9)):advise())", "strict",
  function(self)
  local mine = private(self, "numerics")
  local _, top = exponent_range(mine)
  local _, _, most = native.float_format(mine.format)
  return top and 2.0 ^ min(most - 2 - top, 127)
end)

-- A share as text: what is not 0 does not look like it.
local function percent(x)
  return x == 0 and "0 %" or x < 0.0001 and "<0.01 %" or format("%.2f %%", 100 * x)
end

-- What is said beside the bar of an exponent. The end bins also hold what float64 has beyond them.
local function remark(record, e)
  if record.dtype == "float64" and (e == -149 or e == 127) then return "and beyond" end
  return fate(record.format, e)
end

-- The histogram as lines; rows of several exponents where there are many.
local function histogram(record, lines)
  local least, most = exponent_range(record)
  if not least then return end
  local step = (most - least) // ROWS + 1
  local rows, largest = {}, 0
  for from = least, most, step do
    local row = { from = from, to = min(from + step - 1, most), count = 0, remarks = {} }
    for e = row.from, row.to do
      local count = record.exponents[e] or 0
      local text = count > 0 and remark(record, e) or nil
      row.count = row.count + count
      if text and row.remarks[#row.remarks] ~= text then row.remarks[#row.remarks + 1] = text end
    end
    rows[#rows + 1], largest = row, max(largest, row.count)
  end
  for _, row in ipairs(rows) do
    local label = row.from == row.to and format("2^%d", row.from) or format("2^%d..%d", row.from, row.to)
    local bar = rep("#", ceil(WIDTH * row.count / largest))
    local line = format("  %-12s %8s  %-" .. WIDTH .. "s  %s", label, percent(share(row.count, record.numel)), bar,
      concat(row.remarks, ", "))
    lines[#lines + 1] = match(line, "^(.-) *$")
  end
end

function Record:__tostring()
  local mine, parts = private(self, "numerics"), {}
  if not mine then return "record of gb.amp.numerics" end
  for i, name in ipairs(names) do parts[i] = name .. " " .. percent(mine[name]) end
  local lines = {
    format("%d elements of %s in %s: largest %.4g, smallest above 0 %.4g", mine.numel, mine.dtype, mine.format,
      mine.amax, mine.amin),
    "  " .. concat(parts, ", "),
  }
  histogram(mine, lines)
  return concat(lines, "\n")
end

local COLUMNS = "%s  %-8s %10s %10s %9s %9s %9s %9s %9s %9s"

function Report:__tostring()
  local mine, rows, width = private(self, "numerics_report"), {}, #"tensor"
  if not mine then return "records of gb.amp.numerics" end
  local function add(name, record)
    rows[#rows + 1] = { name, private(record, "numerics") }
    width = max(width, utf8.len(name) or #name)
  end
  for _, entry in ipairs(mine.entries) do
    add(entry.name, entry.value)
    if entry.grad then add(entry.name .. ".grad", entry.grad) end
  end
  local lines = { format(COLUMNS, native.pad("tensor", width), "dtype", "elements", "largest", unpack(names)) }
  for _, row in ipairs(rows) do
    local r, shares = row[2], {}
    for i, name in ipairs(names) do shares[i] = percent(r[name]) end
    lines[#lines + 1] = format(COLUMNS, native.pad(row[1], width), r.dtype, r.numel, format("%.4g", r.amax),
      unpack(shares))
  end
  return concat(lines, "\n")
end

local function is_float(x) return native.float_format(x.dtype) ~= nil end

-- { name =, value =, grad = } of one tensor.
local function entry_of(name, x, form)
  local grad = x.grad
  return { name = name, value = survey(x, form), grad = grad and survey(grad, form, name .. ".grad") or nil }
end

-- Numbers before names, each in their order.
local function before(a, b)
  if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
  if type(a) == "number" or type(b) == "number" then return type(a) == "number" end
  return tostring(a) < tostring(b)
end

local function sorted_keys(tensors)
  local keys = {}
  for key, x in next, tensors do
    if not gb.is_tensor(x) then fail(format("amp.numerics: '%s' must be a tensor, got %s", tostring(key), type(x))) end
    keys[#keys + 1] = key
  end
  table.sort(keys, before)
  return keys
end

-- The entries of a module's parameters, or of a table of tensors; what is not floating is left out.
local function entries_of(x, form)
  local entries = {}
  if gb.nn.is_module(x) then
    for name, p in named_parameters(x) do
      if is_float(p) then entries[#entries + 1] = entry_of(name, p, form) end
    end
    return entries
  end
  local tensors = copy(x)
  for _, key in ipairs(sorted_keys(tensors)) do
    if is_float(tensors[key]) then entries[#entries + 1] = entry_of(tostring(key), tensors[key], form) end
  end
  return entries
end

amp.numerics = define("gb.amp.numerics(x: tensor|module|any; format?: \z
  \"float16\"|\"bfloat16\"|\"float32\"|\"float64\") -> numerics: What a floating format would make of a tensor's \z
  elements, exact at every boundary. The format is the scope's dtype unless it is named, else float16. A record: \z
  numel, dtype, format, amax and amin (the largest finite magnitude, and the smallest above 0), shares from 0 to 1 \z
  of elements that are zero, infinite, nan, and of the others that rounding to the format makes 0 (flushed), \z
  subnormal or infinite (overflowed); the same as integers in counts; exponents[e], how many lie from 2^e up to \z
  2^(e+1). Of a module, or a table of tensors by name: a list of { name =, value = record, grad = record or nil }, \z
  without what is not floating. print shows either. Waits for the device. Errors: a tensor of integers, \z
  gradients that gb.optim.Sharded shares out. Example: \z
  print(gb.amp.numerics(gb.randn(1000) * 1e-6))", "strict", function(x, options)
  local form = options.format or amp.dtype() or "float16"
  if gb.is_tensor(x) then
    if not is_float(x) then fail(format("amp.numerics takes floating tensors, this one is %s", x.dtype)) end
    return survey(x, form)
  end
  if type(x) ~= "table" then
    fail(format("amp.numerics takes a tensor, a module or a table of tensors, got %s", type(x)))
  end
  local entries = entries_of(x, form)
  return own(setmetatable(copy(entries, false), Report), "numerics_report", { entries = entries })
end)
