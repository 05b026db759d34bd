-- numerics.lua - gb.amp.numerics: what a floating format would lose of a tensor, and where its exponents lie. The op counts; this shows.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local amp = gb.amp

local ROWS, WIDTH = 24, 40 -- of a histogram, at most; of its longest bar
local names = { "zero", "infinite", "nan", "flushed", "subnormal", "overflowed" }

local Record = {}
Record.__index = Record
Record.__name = "gb.numerics"
native.classes.numerics = Record

-- The records of many tensors: { name =, value =, grad = }.
local Report = {}
Report.__name = "gb.numerics of tensors"

local function share(count, numel) return numel > 0 and count / numel or 0 end

-- A record of what was counted.
function native.numerics_record(counted)
  local record = setmetatable(counted, Record)
  for _, name in ipairs(names) do record[name] = share(record.counts[name], record.numel) end
  return record
end

-- The record of one tensor.
local function survey(x, format) return native.numerics_record(native.numerics(x, format)) end

-- The least and the largest exponent that occur, or nothing.
local function exponent_range(record)
  local least, most
  for e in pairs(record.exponents) do
    least, most = math.min(e, least or e), math.max(e, most or e)
  end
  return least, most
end

-- What rounding to the format makes of magnitudes from 2^e up to the next power of two, but for those that a tie or a carry takes further.
local function fate(format, e)
  local bits, least, most = native.float_format(format)
  return e < least - bits and "flushed" or e < least and "subnormal" or e > most and "overflowed" or nil
end

-- numerics:at_scale(scale: number) -> table: flushed, subnormal and overflowed, as shares, if every element were multiplied by a power of two.
-- Estimated from the histogram: exact but for values within half a step of a boundary, and for float64 ones beyond the range of float32, which
-- share its end bins. Errors: a scale that is no power of two. Example: print(gb.amp.numerics(gb.rand(9)):at_scale(2^16).flushed)
function Record:at_scale(scale)
  local shift = math.type(scale) and scale > 0 and scale < math.huge and math.floor(math.log(scale, 2) + 0.5)
  if not shift or 2.0 ^ shift ~= scale then fail(("numerics:at_scale: the scale must be a power of two, got %s"):format(tostring(scale))) end
  local counts = { flushed = 0, subnormal = 0, overflowed = 0 }
  for e, count in pairs(self.exponents) do
    local name = fate(self.format, e + shift)
    if name then counts[name] = counts[name] + count end
  end
  for name, count in pairs(counts) do counts[name] = share(count, self.numel) end
  return counts
end

-- numerics:advise() -> number: The largest power of two, 2^127 at most, by which elements may be multiplied so that the largest exponent stays two
-- below the format's: for gradients, a static loss scale. nil where no element is finite and above 0. Example:
-- print(gb.amp.numerics(gb.rand(9)):advise())
function Record:advise()
  local _, top = exponent_range(self)
  local _, _, most = native.float_format(self.format)
  return top and 2.0 ^ math.min(most - 2 - top, 127)
end

-- A share as text: what is not 0 does not look like it.
local function percent(x)
  return x == 0 and "0 %" or x < 0.0001 and "<0.01 %" or ("%.2f %%"):format(100 * x)
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
    local row = { from = from, to = math.min(from + step - 1, most), count = 0, remarks = {} }
    for e = row.from, row.to do
      local count = record.exponents[e] or 0
      local text = count > 0 and remark(record, e) or nil
      row.count = row.count + count
      if text and row.remarks[#row.remarks] ~= text then row.remarks[#row.remarks + 1] = text end
    end
    rows[#rows + 1], largest = row, math.max(largest, row.count)
  end
  for _, row in ipairs(rows) do
    local label = row.from == row.to and ("2^%d"):format(row.from) or ("2^%d..%d"):format(row.from, row.to)
    local bar = ("#"):rep(math.ceil(WIDTH * row.count / largest))
    local line = ("  %-12s %8s  %-" .. WIDTH .. "s  %s"):format(label, percent(share(row.count, record.numel)), bar, table.concat(row.remarks, ", "))
    lines[#lines + 1] = line:match("^(.-) *$")
  end
end

function Record:__tostring()
  local parts = {}
  for i, name in ipairs(names) do parts[i] = name .. " " .. percent(self[name]) end
  local lines = {
    ("%d elements of %s in %s: largest %.4g, smallest above 0 %.4g"):format(self.numel, self.dtype, self.format, self.amax, self.amin),
    "  " .. table.concat(parts, ", "),
  }
  histogram(self, lines)
  return table.concat(lines, "\n")
end

function Report:__tostring()
  local rows, width = {}, #"tensor"
  local function add(name, record)
    rows[#rows + 1] = { name, record }
    width = math.max(width, utf8.len(name) or #name)
  end
  for _, entry in ipairs(self) do
    add(entry.name, entry.value)
    if entry.grad then add(entry.name .. ".grad", entry.grad) end
  end
  local form = "%s  %-8s %10s %10s %9s %9s %9s %9s %9s %9s"
  local lines = { form:format(native.pad("tensor", width), "dtype", "elements", "largest", table.unpack(names)) }
  for _, row in ipairs(rows) do
    local r, shares = row[2], {}
    for i, name in ipairs(names) do shares[i] = percent(r[name]) end
    lines[#lines + 1] = form:format(native.pad(row[1], width), r.dtype, r.numel, ("%.4g"):format(r.amax), table.unpack(shares))
  end
  return table.concat(lines, "\n")
end

-- The format that options ask for: by name, the scope's, or float16.
local function format_of(options)
  if options ~= nil and type(options) ~= "table" then fail(("amp.numerics takes its options in a table, got %s"):format(type(options))) end
  for key in pairs(options or {}) do
    if key ~= "format" then fail(("amp.numerics: unknown option '%s'; there is format"):format(tostring(key))) end
  end
  local format = options and options.format or amp.dtype() or "float16"
  if not native.float_format(format) then
    fail(("amp.numerics: the format is float16, bfloat16, float32 or float64, not '%s'"):format(tostring(format)))
  end
  return format
end

local function is_float(x) return native.float_format(x.dtype) ~= nil end

-- { name =, value =, grad = } of one tensor.
local function entry_of(name, x, format)
  local grad = x.grad
  return { name = name, value = survey(x, format), grad = grad and survey(grad, format) or nil }
end

-- Numbers before names, each in their order.
local function before(a, b)
  if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
  if type(a) == "number" or type(b) == "number" then return type(a) == "number" end
  return tostring(a) < tostring(b)
end

local function sorted_keys(tensors)
  local keys = {}
  for key, x in pairs(tensors) do
    if not gb.is_tensor(x) then fail(("amp.numerics: '%s' is no tensor but %s"):format(tostring(key), type(x))) end
    keys[#keys + 1] = key
  end
  table.sort(keys, before)
  return keys
end

-- gb.amp.numerics(x, options?: table) -> numerics: What a floating format would make of a tensor's elements, exact at every boundary. options:
-- format = the scope's dtype, else "float16". A record: numel, dtype, format, amax and amin (the largest finite magnitude, and the smallest above
-- 0), shares from 0 to 1 of elements that are zero, infinite, nan, and of the others that rounding to the format makes 0 (flushed), subnormal or
-- infinite (overflowed); the same as integers in counts; exponents[e], how many lie from 2^e up to 2^(e+1). Of a module, or a table of tensors
-- by name: a list of { name =, value = record, grad = record or nil }, without what is not floating. print shows either. Waits for the device.
-- Errors: a tensor of integers. Example: print(gb.amp.numerics(gb.randn(1000) * 1e-6))
function amp.numerics(x, options)
  local format = format_of(options)
  if gb.is_tensor(x) then
    if not is_float(x) then fail(("amp.numerics looks at floating tensors, and this one is %s"):format(x.dtype)) end
    return survey(x, format)
  end
  local report = setmetatable({}, Report)
  if gb.nn.is_module(x) then
    for name, p in x:named_parameters() do
      if is_float(p) then report[#report + 1] = entry_of(name, p, format) end
    end
    return report
  end
  if type(x) ~= "table" then fail(("amp.numerics takes a tensor, a module or a table of tensors, got %s"):format(type(x))) end
  for _, key in ipairs(sorted_keys(x)) do
    if is_float(x[key]) then report[#report + 1] = entry_of(tostring(key), x[key], format) end
  end
  return report
end
