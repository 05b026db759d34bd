-- audit.lua - gb.amp.audit: one step op by op, in which dtypes it ran and why, and what its numbers were. The engine's
-- audit (watch/audit.h) makes the rows; here they get the names of modules, what is said about them, and a text.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local own, private, copy, class_name = native.own, native.private, native.copy, native.class_name
local format, find, sub, gsub, lower = string.format, string.find, string.sub, string.gsub, string.lower
local concat, pack, unpack, sort = table.concat, table.pack, table.unpack, table.sort
local floor, log, max = math.floor, math.log, math.max
local amp, precision_of = gb.amp, gb.nn.Module.precision

local classes = {} -- by op
for _, op in ipairs(native.ops()) do classes[op.name] = op.autocast end

-- {==== which module runs ====

-- the audit that runs: { entries = by number, numbers = by module and pin, paths = by module, around = the entry that
-- runs }
local current

-- The number of a module as it is called now, and its entry: a module that is not pinned is pinned as the one around it
-- is.
local function entry_of(module)
  local class, pinned = class_name(module), precision_of(module)
  local known = current.paths[module] or { name = class, path = class }
  local around = current.around
  local pin, by = pinned, known.path
  if not pinned and around then pin, by = around.pin, around.pinned_by end
  local numbers = current.numbers[module] or {}
  current.numbers[module] = numbers
  local key = pin and pin .. " " .. by or ""
  if not numbers[key] then
    numbers[key] = #current.entries + 1
    current.entries[numbers[key]] = { name = known.name, path = known.path, class = class, pin = pin,
      pinned_by = pin and by }
  end
  return numbers[key], current.entries[numbers[key]]
end

-- What ends a module's call: { the number before, the entry before, the audit }.
local leaving = { __close = function(before)
  if current ~= before[3] then return end
  native.audit_module(before[1])
  current.around = before[2]
end }

-- Told of each call of a module while an audit runs: gives what ends it.
function native.enter_audited(module)
  if not current then return nil end
  local number, entry = entry_of(module)
  local before = setmetatable({ native.audit_module(number), current.around or false, current }, leaving)
  current.around = entry
  return before
end

-- ====}

-- {==== what is said of a row ====

local function is_short(dtype) return dtype == "float16" or dtype == "bfloat16" end

-- Why a row ran in what it ran in.
local function reason(row, entry)
  local pin = entry and entry.pin
  local by = pin and format(" (%s)", entry.pinned_by) or ""
  if row.phase == "step" then return "optimizer" end
  if row.phase == "backward" then return row.op == "cast" and "the dtype of what it is the gradient of" or
    "the graph" end
  if row.op == "cast" then return "asked for" end
  if row.named then return "dtype named by the caller" end
  if not row.scope then return pin == "float32" and "pinned to float32" .. by or "autocast is off" end
  if row.class == "lower" then return pin == row.scope and format("pinned to %s%s", pin, by) or
    "scope of " .. row.scope end
  return ({ float32 = "float32 class", widest = "widest of its inputs" })[row.class] or "keeps its inputs' dtype"
end

-- Why no Tensor Core can multiply this, or nil. Sizes are multiples of 16 bytes: 8 elements of 16 bits, 4 of TF32.
local function obstacle(products, product, tf32)
  if products.dtype == "float64" then return "float64" end
  if products.dtype == "float32" and products.mixed then return "two dtypes" end
  if products.dtype == "float32" and not tf32 then return "float32 without TF32" end
  local multiple, odd = is_short(products.dtype) and 8 or 4, {}
  for _, check in ipairs(product.checked) do
    if check[2] % multiple ~= 0 then odd[#odd + 1] = check[1] .. " " .. check[2] end
  end
  if #odd > 0 then return concat(odd, ", ") end
  return products.copied and "copied first" or nil
end

local function judge_products(row)
  local products = row.products
  if not products then return end
  local total, fit = 0, 0
  for _, product in ipairs(products) do
    product.operations = 2 * product.batch * product.m * product.n * product.k
    product.obstacle = obstacle(products, product, row.tf32)
    total = total + product.operations
    if not product.obstacle then fit = fit + product.operations end
    row.obstacle = row.obstacle or product.obstacle
  end
  row.operations, row.eligible_operations = total, fit
  row.tensor_cores = not row.obstacle and "yes" or fit > 0 and "in part" or "no"
end

-- The shares that a row shows, of its 16-bit results where it has some: { zero, flushed, subnormal, infinite, amax,
-- would = (nothing has been rounded to 16 bits yet) }. A cast is asked about what it was given.
local function shares_of(row)
  local numel, zero, flushed, subnormal, infinite, amax, short = 0, 0, 0, 0, 0, 0, row.of_source
  for _, n in ipairs(row.numbers) do short = short or n and is_short(n.dtype) end
  for _, n in ipairs(row.numbers) do
    if n then amax = max(amax, n.amax) end
    if n and (not short or row.of_source or is_short(n.dtype)) then
      local c = n.counts
      numel, zero, flushed, subnormal = numel + n.numel, zero + c.zero, flushed + c.flushed, subnormal + c.subnormal
      infinite = infinite + c.infinite + c.nan + (row.of_source and c.overflowed or 0)
    end
  end
  if numel == 0 then return nil end
  return { zero = zero / numel, flushed = flushed / numel, subnormal = subnormal / numel, infinite = infinite / numel,
    amax = amax, would = not short }
end

-- Did this row make, or pass on, what is not finite? In forward, minus infinity is what masks are made of; but no
-- product makes a mask.
local function not_finite(row)
  local casts = row.cast_numbers
  if casts and casts.counts.overflowed > 0 then return "in the cast of its input to " .. casts.format end
  for _, n in ipairs(row.numbers) do
    if n and row.of_source and n.counts.overflowed > 0 then return "in the cast to " .. n.format end
    if n and (n.plus or (row.products or row.phase == "backward") and n.counts.infinite + n.counts.nan > 0) then
      return ""
    end
  end
end

-- {---- gradients and the scale they would need ---- --

-- Add the bins of n, each moved down by `shift` exponents, to a record.
local function add_bins(record, n, shift)
  for e, count in next, n.exponents do record.exponents[e - shift] = (record.exponents[e - shift] or 0) + count end
  for name, count in next, n.counts do record.counts[name] = (record.counts[name] or 0) + count end
  record.numel = record.numel + n.numel
end

-- The exponents of what backward made, without the scale it carried: of what lies in 16 bits, or where nothing does of
-- all.
local function gradients_of(rows, form, short)
  local record = { exponents = {}, counts = { zero = 0, infinite = 0, nan = 0, flushed = 0, subnormal = 0,
    overflowed = 0 }, numel = 0, format = form,
    dtype = short and form or "float32", amax = 0, amin = 0 }
  for _, row in ipairs(rows) do
    -- the walk begins with a 1, of no node
    local made = row.phase == "backward" and row.of and not row.settling and not row.hook
    for _, n in ipairs(made and row.numbers or {}) do
      if n and (not short or row.of_source or is_short(n.dtype)) then
        add_bins(record, n, row.scale and row.scale > 0 and floor(log(row.scale, 2) + 1e-9) or 0)
      end
    end
  end
  return native.numerics_record(record)
end

local around = { -8, -4, -2, 0, 2, 4, 8 } -- powers of two beside the advised scale that the table shows

-- The static scale for these rows: the largest power of two that leaves the top exponent two bits below that of the
-- format's largest number. None where no gradient is finite and above 0.
local function advise(rows, form)
  local record = gradients_of(rows, form, true)
  if record.numel == 0 then record = gradients_of(rows, form, false) end
  if record.numel == 0 then return nil end
  local scale = record:advise()
  local advice = { format = form, infinite = record.counts.infinite + record.counts.nan, table = {} }
  if not scale then return advice end
  for e in next, record.exponents do advice.top = max(advice.top or e, e) end
  advice.scale = form == "bfloat16" and 1.0 or scale
  for i, step in ipairs(around) do
    advice.table[i] = record:at_scale(advice.scale * 2.0 ^ step)
    advice.table[i].scale = advice.scale * 2.0 ^ step
  end
  local now = 0 -- what the step itself ran with, if anything
  for _, row in ipairs(rows) do now = row.scale or now end
  advice.now = now > 0 and now or nil
  return advice
end

-- ---- }

-- The rows that have most of something: at most three { row, share }, the most first.
local function worst(rows, share_of)
  local list = {}
  for i, row in ipairs(rows) do
    local share = share_of(row)
    if share and share > 0 then list[#list + 1] = { row = row, share = share, place = i } end
  end
  sort(list, function(a, b) return a.share > b.share or a.share == b.share and a.place < b.place end)
  return { list[1], list[2], list[3] }
end

-- What overflowed on the way into 16 bits, or there.
local function overflow_share(row)
  local n, s = row.cast_numbers, row.shares
  local cast = n and n.numel > 0 and n.counts.overflowed / n.numel or 0
  return max(cast, s and s.infinite or 0)
end

-- What casts to 16 bits made 0. What a kernel rounds away itself leaves no trace but zeros.
local function flushed_share(row)
  local n, s = row.cast_numbers, row.shares
  local cast = n and n.numel > 0 and n.counts.flushed / n.numel or 0
  return max(cast, s and row.of_source and s.flushed or 0)
end

-- ====}

-- {==== the text ====

local short_names = {}
for _, dtype in ipairs(native.dtypes()) do short_names[dtype.name] = lower(dtype.file) end

local function shape_text(shape) return #shape == 0 and "scalar" or concat(shape, "x") end

local bytes_text = native.bytes_text

local function operations_text(n)
  return native.in_units(n, { "operations", "thousand operations", "million operations", "billion operations",
    "trillion operations" })
end

local function percent(share)
  if share == 0 then return "" end
  return share < 0.0005 and "<0.1" or share > 0.9995 and "100" or format("%.1f", 100 * share)
end

local function power_text(scale)
  local power = log(scale, 2)
  return power == floor(power) and format("2^%d", power) or format("%g", scale)
end

-- "2 f32>f16, i64 -> f16": each input as it came and as the kernel saw it, equal neighbours counted.
local function dtypes_text(row)
  local parts, last, times = {}, nil, 0
  local function flush()
    if last then parts[#parts + 1] = times > 1 and format("%d %s", times, last) or last end
  end
  for _, t in ipairs(row.inputs) do
    local text = (t.before and short_names[t.before] .. ">" or "") .. short_names[t.dtype]
    if text ~= last then
      flush()
      last, times = text, 0
    end
    times = times + 1
  end
  flush()
  local results = {}
  for i, t in ipairs(row.outputs) do results[i] = short_names[t.dtype] end
  return concat(parts, " ") .. (#results > 0 and " -> " .. concat(results, " ") or "")
end

local function autocast_text(row)
  if row.phase == "step" or row.phase == "backward" then return "" end
  if row.op == "cast" then return "asked" end
  if row.named then return "named" end
  if find(row.why, "^pinned") then return "pin " .. short_names[row.scope or "float32"] end
  if not row.scope then return "off" end
  return row.class == "lower" and "lower " .. short_names[row.scope] or row.class
end

local function casts_text(row)
  local parts = {}
  if row.casts > 0 then parts[1] = format("%d, %s", row.casts, bytes_text(row.cast_bytes)) end
  if row.reused > 0 then parts[#parts + 1] = format("%d kept", row.reused) end
  return concat(parts, ", ")
end

local function product_text(row)
  local p = row.products and row.products[1]
  if not p then return "" end
  local more = #row.products > 1 and format(" +%d", #row.products - 1) or ""
  return format("%s%dx%dx%d%s", p.batch > 1 and p.batch .. "*" or "", p.m, p.n, p.k, more)
end

local function cores_text(row)
  if not row.products then return "" end
  return row.tensor_cores .. (row.obstacle and ": " .. row.obstacle or "")
end

local function name_text(row)
  local text = row.op .. (row.in_place and "_" or "")
  if row.phase ~= "backward" then return row.of and format("%s (%s)", row.of, text) or text end
  if row.settling then return text .. " (to the sum)" end
  if row.hook then return format("%s in a hook%s", text, row.of and " on " .. row.of or "") end
  return row.of and sub(row.op, 1, #row.of) ~= row.of and format("%s of %s", text, row.of) or text
end

-- The share of what was lost for good, or in parentheses of what 16 bits would lose.
local function flushed_text(row)
  local lost = percent(flushed_share(row))
  if lost ~= "" or not (row.shares and row.shares.would) then return lost end
  local would = percent(row.shares.flushed)
  return would == "" and "" or "(" .. would .. ")"
end

local function shares_text(row, name)
  local share = row.shares and row.shares[name] or 0
  local text = percent(name == "infinite" and overflow_share(row) or share)
  return name == "subnormal" and text ~= "" and row.shares.would and "(" .. text .. ")" or text
end

-- { heading, cell of a row, to the right? }
local columns = {
  { "op", function(row) return name_text(row) .. (row.calls > 1 and format(" (%d times)", row.calls) or "") end },
  { "autocast", autocast_text },
  { "dtypes", dtypes_text },
  { "result", function(row) return row.outputs[1] and shape_text(row.outputs[1].shape) or "" end },
  { "casts", casts_text },
  { "M x N x K", product_text },
  { "Tensor Cores", cores_text },
  { "largest", function(row) return row.shares and format("%.3g", row.shares.amax) or "" end, true },
  { "zero %", function(row) return shares_text(row, "zero") end, true },
  { "flush %", flushed_text, true },
  { "subn %", function(row) return shares_text(row, "subnormal") end, true },
  { "inf %", function(row) return shares_text(row, "infinite") end, true },
}

-- Where a row belongs, for a line above it: "forward  blocks[1].mlp (MLP)  train.lua:12".
local function heading(row)
  local parts = { row.phase }
  if row.module then parts[2] = row.module == row.module_class and row.module or
    format("%s (%s)", row.module, row.module_class) end
  if row.line then parts[#parts + 1] = row.line end
  if row.pinned_by then
    parts[#parts + 1] = format("pinned to %s%s", row.pin, row.pinned_by ~= row.module and " by " .. row.pinned_by or "")
  end
  return concat(parts, "  ")
end

-- A line of cells, each as wide as its column; columns that nothing stands in are left out.
local function line_of(cells, widths)
  local parts = {}
  for i, column in ipairs(columns) do
    if widths[i] then parts[#parts + 1] = native.pad(cells[i], widths[i], column[3]) end
  end
  return "  " .. gsub(concat(parts, "  "), " +$", "")
end

local function table_lines(report, lines)
  local all, widths, headings = {}, {}, {}
  for r, row in ipairs(report.rows) do
    all[r] = {}
    for i, column in ipairs(columns) do
      local cell = column[2](row)
      all[r][i] = cell
      if cell ~= "" then widths[i] = max(widths[i] or #column[1], utf8.len(cell) or #cell) end
    end
  end
  for i, column in ipairs(columns) do headings[i] = column[1] end
  lines[#lines + 1] = line_of(headings, widths)
  local before
  for r, row in ipairs(report.rows) do
    local now = heading(row)
    if now ~= before then lines[#lines + 1] = now end
    lines[#lines + 1] = line_of(all[r], widths)
    before = now
  end
end

-- A row in a sentence: "linear in fc2 (train.lua:12)".
local function place_text(row)
  return format("%s%s%s%s", row.phase == "backward" and "backward, " or "", name_text(row),
    row.module and " in " .. row.module or "",
    row.line and " (" .. row.line .. ")" or "")
end

local function worst_text(list)
  local parts = {}
  for i, entry in ipairs(list) do parts[i] = format("%s %% at %s", percent(entry.share), place_text(entry.row)) end
  return concat(parts, "; ")
end

local function add(lines, label, text) lines[#lines + 1] = format("%-13s %s", label, text) end

local function advice_lines(report, lines)
  local a = report.advice
  if not a then return end
  if a.format == "bfloat16" then
    add(lines, "loss scale", "none is needed: bfloat16 has the exponents of float32")
    return
  end
  if not a.scale then
    add(lines, "loss scale", a.infinite > 0 and "none advised: no gradient is finite and above 0; audit once more \z
      with a smaller scale" or
      "none advised: all gradients are 0")
    return
  end
  add(lines, "loss scale", format("%s advised: the largest power of two that leaves the top exponent of the \z
    gradients, 2^%d, two bits below that of",
    power_text(a.scale), a.top))
  add(lines, "", format("%s's largest number%s", a.format, a.now and "; the step ran with " .. power_text(a.now) or ""))
  if a.infinite > 0 then add(lines, "", format("%d gradients were not finite and are not in it: audit once more \z
    with a smaller scale", a.infinite)) end
  add(lines, "", format("%-10s %9s %11s %12s", "at", "flushed %", "subnormal %", "overflowed %"))
  local function share(of) return of == 0 and "0" or percent(of) end
  for _, row in ipairs(a.table) do
    add(lines, "", format("%-10s %9s %11s %12s%s", power_text(row.scale), share(row.flushed), share(row.subnormal),
      share(row.overflowed),
      row.scale == a.scale and "  <- advised" or row.scale == a.now and "  <- now" or ""))
  end
end

local function summary_lines(report, lines)
  add(lines, "casts", format("%d, which read and wrote %s; for %d more inputs a kept 16-bit copy of a weight \z
    served, at no cost", report.casts,
    bytes_text(report.cast_bytes), report.reused))
  if report.operations > 0 then
    add(lines, "products", format("%s, %.1f %% of them fit Tensor Cores: M, N and K (channels, or head_dim) are \z
      multiples of 8 in 16 bits, or of 4",
      operations_text(report.operations), 100 * report.eligible))
    add(lines, "", "in TF32. Of other sizes cuBLASLt pads what it can, which is slower; an operand that lies \z
      otherwise is copied first")
  end
  if report.without_onednn then
    add(lines, "convolutions", "about three times as slow as with oneDNN: " .. report.without_onednn)
  end
  local first = report.first_nonfinite
  add(lines, "not finite", first and place_text(first.row) .. (first.how ~= "" and ", " .. first.how or "") ..
    " is the first" or "nothing")
  if #report.overflowing > 0 then add(lines, "overflow", worst_text(report.overflowing)) end
  if #report.flushing > 0 then add(lines, "flushed", worst_text(report.flushing)) end
  advice_lines(report, lines)
end

-- What is private of a report: all that it shows.
local Report = { __name = "gb.audit" }

function Report:__tostring()
  local mine = private(self, "audit")
  if not mine then return "report of gb.amp.audit" end
  local lines = { format("audit of %s: %d ops in %d rows, %s", mine.model, mine.calls, #mine.rows, mine.format) }
  table_lines(mine, lines)
  lines[#lines + 1] = ""
  summary_lines(mine, lines)
  return concat(lines, "\n")
end

-- ====}

-- {==== the report ====

-- The 16-bit format that the step is about: that of its scopes or of its tensors, else float16.
local function format_of(rows)
  for _, row in ipairs(rows) do
    if row.scope then return row.scope end
  end
  for _, row in ipairs(rows) do
    for _, t in ipairs(row.outputs) do
      if is_short(t.dtype) then return t.dtype end
    end
  end
  return "float16"
end

-- Complete a row of the engine's.
local function complete(row, entry)
  if entry then
    row.module, row.name, row.module_class = entry.path, entry.name, entry.class
    row.pin, row.pinned_by = entry.pin, entry.pinned_by
  end
  local part = row.phase ~= "backward" and row.phase ~= "step" and row.of -- of a composite, whose class counts
  row.class = classes[part or row.op]
  row.why = reason(row, entry)
  for i, n in ipairs(row.numbers) do row.numbers[i] = n and native.numerics_record(n) end
  if row.cast_numbers then native.numerics_record(row.cast_numbers) end
  row.shares = shares_of(row)
  judge_products(row)
end

local function report_of(model, rows, entries)
  local report = { model = class_name(model), rows = rows, calls = 0, casts = 0, cast_bytes = 0, reused = 0,
    operations = 0,
    eligible_operations = 0, format = format_of(rows) }
  for _, row in ipairs(rows) do
    complete(row, entries[row.module])
    for _, name in ipairs { "calls", "casts", "cast_bytes", "reused" } do report[name] = report[name] + row[name] end
    report.operations = report.operations + row.calls * (row.operations or 0)
    report.eligible_operations = report.eligible_operations + row.calls * (row.eligible_operations or 0)
    if find(row.op, "^conv") then report.without_onednn = native.onednn_trouble() end
    local how = not report.first_nonfinite and not_finite(row)
    if how then report.first_nonfinite = { row = row, how = how, phase = row.phase, module = row.module, op = row.op,
      line = row.line } end
  end
  report.eligible = report.operations > 0 and report.eligible_operations / report.operations or 0
  report.overflowing, report.flushing = worst(rows, overflow_share), worst(rows, flushed_share)
  report.advice = advise(rows, report.format)
  return own(setmetatable(copy(report), Report), "audit", report)
end

-- The options: a last plain table that has one of them. Returns a copy, and how many arguments come before.
local function options_of(arguments)
  local last = arguments[arguments.n]
  local plain = type(last) == "table" and not getmetatable(last) and
    (rawget(last, "precision") ~= nil or rawget(last, "print") ~= nil)
  if not plain then return {}, arguments.n end
  local options = copy(last)
  for key in next, options do
    if key ~= "precision" and key ~= "print" then
      fail(format("amp.audit has no option '%s'; there are precision and print", tostring(key)))
    end
  end
  if options.print ~= nil and type(options.print) ~= "boolean" then
    fail(format("amp.audit: 'print' must be true or false, got %s", type(options.print)))
  end
  return options, arguments.n - 1
end

-- What is run: the step, or the model on the inputs; in the scope of a precision where one is given.
local function runner(model, step, options)
  if options.precision == nil then return step or model end
  local precision = amp.precision(options.precision)
  return function(...) amp.autocast(precision, step or model, ...) end
end

-- What gb.amp.audit does; its record is in init.lua.
function native.late.audit(model, step, ...)
  local is_step = not gb.is_tensor(step)
  local arguments = is_step and pack(model, ...) or pack(step, ...)
  local options, count = options_of(arguments)
  local fn = runner(model, is_step and step, options)
  local state = { entries = {}, numbers = {}, paths = {}, around = false }
  for _, entry in ipairs(native.module_paths(model)) do
    state.paths[entry[1]] = { name = entry[2], path = entry[3] ~= "" and entry[3] or class_name(model) }
  end
  local _ <close> = setmetatable({}, { __close = function() current = current ~= state and current or nil end })
  local rows = native.audit(function(...)
    current = state
    fn(...)
  end, unpack(arguments, 1, count))
  local report = report_of(model, rows, state.entries)
  if options.print ~= false then print(tostring(report)) end
  return report
end

-- ====}
