-- summary.lua - gb.summary: the modules of a model with shapes, parameters and operations, and the memory that training
-- it takes in each precision, measured on a sample.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local own, private, class_name, bytes_text = native.own, native.private, native.class_name, native.bytes_text
local is_tensor = gb.is_tensor
local format, rep, concat, unpack, pack = string.format, string.rep, table.concat, table.unpack, table.pack
local max = math.max
local Module = gb.nn.Module

local PRECISIONS = { "32-true", "16-mixed", "bf16-mixed" }
local ADAM_BYTES = 8 -- two float32 states for each parameter
local KEPT = { 4, 5, 6, 7 } -- of the engine's categories: weight copies, saved, other, scratch
local EVENTS = 200000

-- {==== leaving no trace ==== --

-- What the passes change, and a function that puts it back.
local function remember(model)
  local seed, offset = native.get_rng()
  local buffers, grads, modes = {}, {}, {}
  for _, b in Module.named_buffers(model) do buffers[#buffers + 1] = { b, b:detach():clone() } end
  for _, p in Module.named_parameters(model) do
    local grad = p.grad
    grads[#grads + 1] = { p, grad, grad and grad:clone() } -- that of an optimizer's parameter is written over
    p.grad = nil
  end
  for _, module in ipairs(Module.modules(model)) do modes[#modes + 1] = { module, module.training } end
  return function()
    native.set_rng(seed, offset)
    gb.no_grad(function()
      for _, pair in ipairs(buffers) do pair[1]:copy_(pair[2]) end
      for _, entry in ipairs(grads) do
        if entry[2] then entry[2]:copy_(entry[3]) end
        entry[1].grad = entry[2]
      end
    end)
    for _, pair in ipairs(modes) do pair[1].training = pair[2] end
  end
end

-- ====} --

-- {==== modules ==== --

-- The tensors in what a module gave, in tables too.
local function tensors_in(value, found, depth)
  if is_tensor(value) then found[#found + 1] = value
  elseif type(value) == "table" and depth < 8 then
    for i = 1, #value do tensors_in(value[i], found, depth + 1) end
    local names = {}
    for name in next, value do
      if type(name) == "string" then names[#names + 1] = name end
    end
    table.sort(names)
    for _, name in ipairs(names) do tensors_in(value[name], found, depth + 1) end
  end
  return found
end

-- A row for each module, as it is declared.
local function rows_of(model)
  local rows, by_module, seen = {}, {}, {}
  for _, entry in ipairs(native.module_paths(model)) do
    local module, name = entry[1], entry[2]
    local _, dots = string.gsub(name, "%.", "")
    local row = { name = name, path = entry[3] ~= "" and entry[3] or class_name(model), class = class_name(module),
      depth = name == "" and 0 or dots + 1, parameters = 0, operations = 0, calls = 0, shapes = {} }
    rows[#rows + 1], by_module[module] = row, row
  end
  local trainable, all, by_name = 0, 0, {}
  for _, row in ipairs(rows) do by_name[row.name] = row end
  for name, p in Module.named_parameters(model) do
    if not seen[p] then
      seen[p] = true
      all = all + p:numel()
      if p.requires_grad then trainable = trainable + p:numel() end
      local holder = string.match(name, "^(.*)%.[^.]*$") or ""
      while not by_name[holder] do holder = string.match(holder, "^(.*)%.[^.]*$") or "" end -- in a table of a module
      by_name[holder].parameters = by_name[holder].parameters + p:numel()
    end
  end
  return rows, by_module, all, trainable
end

-- Run the model once: shapes by hooks, operations by an audit.
local function trace(model, inputs, rows, by_module)
  local removes, without = {}, {}
  local _ <close> = setmetatable({}, { __close = function()
    for _, remove in ipairs(removes) do remove() end
    -- layers let go of intermediate results early where there never was a hook
    for _, module in ipairs(without) do
      local hooks = module._hooks
      native.set_hooks(module, (#hooks > 0 or hooks.before ~= nil) and hooks)
    end
  end })
  for module, row in next, by_module do
    if not module._hooks then without[#without + 1] = module end
    removes[#removes + 1] = Module.register_forward_hook(module, function(_, _, ...)
      row.calls = row.calls + 1
      row.shapes = {}
      for i, t in ipairs(tensors_in({ ... }, {}, 0)) do row.shapes[i] = native.copy(t.shape) end
    end)
  end
  local report = gb.amp.audit(model, function()
    gb.no_grad(function() model(unpack(inputs, 1, inputs.n)) end)
  end, { print = false })
  local by_path, operations = {}, 0
  for _, row in ipairs(rows) do by_path[row.path] = row end
  for _, row in ipairs(report.rows) do
    local count = row.calls * (row.operations or 0)
    local target = by_path[row.module] or rows[1]
    target.operations, operations = target.operations + count, operations + count
  end
  return operations
end

-- ====} --

-- {==== memory ==== --

-- Bytes of what a step keeps for a while; e.live of the profile.
local function kept(live)
  local sum = 0
  for _, i in ipairs(KEPT) do sum = sum + live[i] end
  return sum
end

local function live_now()
  local current = gb.memory_stats().current
  return kept { 0, 0, 0, current.weight_copies, current.saved, current.other, current.scratch }
end

-- What a forward and a backward pass in this precision keep at most, beside gradients, which are there before.
local function activations(model, inputs, precision)
  for _, p in ipairs(Module.parameters(model)) do
    if p.requires_grad then p.grad = gb.zeros_like(p) end
  end
  collectgarbage()
  collectgarbage()
  local before = live_now()
  local events = native.profile(function()
    local results = pack(gb.amp.autocast(precision, function() return model(unpack(inputs, 1, inputs.n)) end))
    local loss
    for _, y in ipairs(tensors_in(results, {}, 0)) do
      if y.requires_grad then
        local sum = y:float():sum()
        loss = loss and loss + sum or sum
      end
    end
    if loss then loss:backward() end
  end, EVENTS)
  local most = before
  for _, e in ipairs(events) do
    if e.live then most = max(most, kept(e.live)) end
  end
  return most - before
end

-- By precision: { parameters =, gradients =, optimizer =, activations =, total = }.
local function memory_of(model, inputs, names)
  local memory, parameters, gradients, states = {}, 0, 0, 0
  for _, p in ipairs(Module.parameters(model)) do
    local bytes = p:numel() * p:element_size()
    parameters = parameters + bytes
    if p.requires_grad then
      gradients = gradients + bytes
      states = states + p:numel() * ADAM_BYTES
    end
  end
  for _, name in ipairs(names) do
    local m = { parameters = parameters, gradients = gradients, optimizer = states,
      activations = activations(model, inputs, gb.amp.precision(name)) }
    m.total = m.parameters + m.gradients + m.optimizer + m.activations
    memory[name] = m
    for _, p in ipairs(Module.parameters(model)) do p.grad = nil end
  end
  return memory
end

-- ====} --

-- {==== the text ==== --

local Report = { __name = "gb.summary" }

local function grouped(n)
  local text = format("%d", n)
  while true do
    local cut, times = string.gsub(text, "^(%-?%d+)(%d%d%d)", "%1,%2")
    if times == 0 then return text end
    text = cut
  end
end

local function shapes_text(shapes)
  local parts = {}
  for i, shape in ipairs(shapes) do parts[i] = #shape == 0 and "scalar" or concat(shape, "x") end
  return concat(parts, ", ")
end

local function operations_text(n) return n > 0 and native.in_units(n, { "", "K", "M", "G", "T" }) or "" end

-- Lines of cells in columns; the first is to the left, `left` says of the others.
local function add_table(lines, rows, left)
  local widths = {}
  for _, row in ipairs(rows) do
    for c, cell in ipairs(row) do widths[c] = max(widths[c] or 0, utf8.len(cell) or #cell) end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for c, cell in ipairs(row) do cells[c] = native.pad(cell, widths[c], not left[c]) end
    lines[#lines + 1] = (string.gsub(concat(cells, "  "), " +$", ""))
  end
end

function Report:__tostring()
  local mine = private(self, "summary")
  if not mine then return "report of gb.summary" end
  local report, lines, rows = mine.report, {}, { { "module", "shape", "parameters", "operations", "calls" } }
  for _, row in ipairs(report.rows) do
    if row.depth <= mine.depth then
      local name = row.name == "" and row.class or string.match(row.name, "[^.]*$") .. " " .. row.class
      rows[#rows + 1] = { rep("  ", row.depth) .. name, shapes_text(row.shapes),
        row.parameters > 0 and grouped(row.parameters) or "", operations_text(row.operations),
        row.calls ~= 1 and format("%d", row.calls) or "" }
    end
  end
  add_table(lines, rows, { true, true })
  lines[#lines + 1] = ""
  lines[#lines + 1] = format("%s parameters, %s of them trained; %soperations for the sample, forward",
    grouped(report.parameters), grouped(report.trainable), native.in_units(report.operations, { "", "thousand ",
      "million ", "billion ", "trillion " }))
  local table_rows = { { "training, Adam", "parameters", "gradients", "optimizer", "activations", "together" } }
  for _, name in ipairs(mine.precisions) do
    local m = report.memory[name]
    table_rows[#table_rows + 1] = { name, bytes_text(m.parameters), bytes_text(m.gradients), bytes_text(m.optimizer),
      bytes_text(m.activations), bytes_text(m.total) }
  end
  lines[#lines + 1] = ""
  add_table(lines, table_rows, { true })
  return concat(lines, "\n")
end

-- ====} --

function native.late.summary(model, sample, options)
  local inputs = is_tensor(sample) and { n = 1, sample } or pack(unpack(sample))
  local names = options.precisions or PRECISIONS
  for i = 1, #names do
    if type(names[i]) ~= "string" then fail(format("summary: 'precisions' [%d] is no name of a precision", i)) end
    gb.amp.precision(names[i])
  end
  local back = remember(model)
  local _ <close> = setmetatable({}, { __close = back })
  Module.train(model)
  local rows, by_module, all, trainable = rows_of(model)
  local operations = trace(model, inputs, rows, by_module)
  local report = { rows = rows, parameters = all, trainable = trainable, operations = operations,
    memory = memory_of(model, inputs, names) }
  own(setmetatable(report, Report), "summary", { report = native.copy(report, true), precisions = native.copy(names),
    depth = options.depth or 1000 })
  if options.print then print(tostring(report)) end
  return report
end
