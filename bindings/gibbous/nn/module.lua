-- nn/module.lua - Module: classes, discovery of parameters and submodules, state, printing.
--
-- What a module holds is found when it is asked for, in order of first assignment: parameters, buffers, modules, and plain tables of them
-- (their array part, then their other keys sorted). Something held twice is listed once. Names count arrays from 0, as PyTorch's files do;
-- paths in messages count from 1, as Lua does.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local nn = gb.nn
local rawget, getmetatable, type = rawget, getmetatable, type -- locals: a call of a small layer is mostly look-ups

local Module = { __name = "Module" }
Module.__index = Module

local fields = {} -- names a module uses for itself
for _, name in ipairs { "_order", "_buffers", "_hooks", "_precision", "training" } do fields[name] = true end

-- Record the order of first assignment, and keep methods from being hidden.
local function assign(self, key, value)
  if type(key) == "string" and not fields[key] and type(getmetatable(self).__index[key]) == "function" then
    fail(("%s.%s is a method; give the field another name"):format(getmetatable(self).__name, key))
  end
  local order = rawget(self, "_order")
  if order and not order.known[key] then
    order.known[key] = true
    order[#order + 1] = key
  end
  rawset(self, key, value)
end

-- An instance of class: made, initialised. What every call asks for is there from the beginning, so that no class is looked through for it.
local function construct(class, ...)
  local self = setmetatable({ _order = { known = {} }, _buffers = {}, _hooks = false, _precision = false, training = true }, class.__instance)
  self:init(...)
  return self
end

-- The values, with 16-bit tensors among them made float32.
local function widen(...)
  local values = table.pack(...)
  for i = 1, values.n do
    local x = values[i]
    if gb.is_tensor(x) and (x.dtype == "float16" or x.dtype == "bfloat16") then values[i] = x:to("float32") end
  end
  return table.unpack(values, 1, values.n)
end

-- fn(self, ...) in the precision that self is pinned to, if it is.
local function pinned(self, fn, ...)
  local precision = self._precision
  if not precision then return fn(self, ...) end
  if precision == "float32" then return gb.amp.disable(fn, self, widen(...)) end
  return gb.amp.autocast(precision, fn, self, ...)
end
native.pinned = pinned

local function call_hooked(self, hooks, ...)
  local result = table.pack(pinned(self, self.forward, ...))
  for _, hook in ipairs(hooks) do -- which may remove itself
    local replaced = hook(self, { ... }, table.unpack(result, 1, result.n))
    if replaced ~= nil then result = table.pack(replaced) end
  end
  return table.unpack(result, 1, result.n)
end

local function dressed_call(self, ...)
  if self._hooks then return call_hooked(self, self._hooks, ...) end
  return pinned(self, self.forward, ...)
end

-- Under a profiler a call is a range with the class's name, and the outermost one lies in the phase "forward".
-- An audit is told of the module that runs.
local watched, depth = native.is_watched, 0
local function leave()
  native.range_pop()
  depth = depth - 1
  if depth == 0 then native.range_pop() end
end
local closing = setmetatable({}, { __close = leave })

local function watched_call(self, ...)
  if depth == 0 then native.range_push("forward") end
  native.range_push(getmetatable(self).__name)
  depth = depth + 1
  local _ <close> = closing
  local _ <close> = native.enter_audited and native.enter_audited(self)
  return dressed_call(self, ...)
end

-- Most modules have neither hooks nor a precision, and nobody looks on: they pay for no more than being asked.
local function call(self, ...)
  if watched() then return watched_call(self, ...) end
  if self._hooks or self._precision then return dressed_call(self, ...) end
  return self.forward(self, ...)
end

local function class_of(name, parent)
  local class = { __name = name }
  class.__index = class
  class.__instance = { __index = class, __newindex = assign, __call = call, __name = name, __module = true, __pairs = parent.__instance.__pairs,
                       __tostring = function(self) return self:describe() end }
  return setmetatable(class, { __index = parent, __call = construct, __name = "class " .. name })
end

-- Module:extend(name: string) -> class: A new class below this one; init(...) and forward(...) make it a layer. Example: local Net =
-- gb.nn.Module:extend("Net") function Net:forward(y) return y * 2 end print(Net()(x))
-- gb.nn.Module(...) -> module: The class that every layer and model descends from: nn.Module:extend(name) makes a class, class(...) a module,
-- module(...) calls its forward. Parameters and modules assigned to its fields are discovered. Example: local Net = gb.nn.Module:extend("Net")
-- function Net:init() self.head = gb.nn.Linear(4, 2) end
function Module:extend(name)
  if type(name) ~= "string" then fail("Module:extend takes the name of the class") end
  local class = class_of(name, self)
  class._library = false
  return class
end

-- Module:init(...): What a class does with the arguments of its constructor; classes define their own.
function Module:init() end

-- Module:forward(...) -> any: What calling the module computes; classes define their own. Errors: a class without one. Example: local y =
-- model:forward(x)
function Module:forward()
  fail(("%s has no forward; define function %s:forward(x)"):format(getmetatable(self).__name, getmetatable(self).__name))
end

-- gb.nn.is_module(value) -> bool: Is value a module? Example: print(gb.nn.is_module(model))
function nn.is_module(value)
  local meta = getmetatable(value)
  return type(meta) == "table" and meta.__module == true
end

-- {==== discovery ====

local function sorted_keys(table_)
  local keys = {}
  for key in pairs(table_) do
    if not (math.type(key) == "integer" and key >= 1 and key <= #table_) then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- Modules and tables within each other, at most: names grow with the square of it, and Lua's stack ends somewhere.
local MOST_DEPTH = 1000
local function check_depth(depth)
  if depth > MOST_DEPTH then fail(("a module holds modules and tables within each other more than %d deep"):format(MOST_DEPTH)) end
end

local visit -- (value, name, path, seen, found, depth): add what value is or holds

local function visit_table(value, name, path, seen, found, depth)
  if seen[value] then return end
  seen[value] = true
  check_depth(depth)
  for i = 1, #value do visit(value[i], name .. "." .. (i - 1), path .. "[" .. i .. "]", seen, found, depth + 1) end
  for _, key in ipairs(sorted_keys(value)) do
    visit(value[key], name .. "." .. tostring(key), path .. "." .. tostring(key), seen, found, depth + 1)
  end
end

local function visit_module(module, name, path, seen, found, depth)
  if seen[module] then return end
  seen[module] = true
  check_depth(depth)
  found(module, name, path, "module")
  local prefix = name == "" and "" or name .. "."
  for _, key in ipairs(rawget(module, "_order")) do
    local value = rawget(module, key)
    local array = math.type(key) == "integer"
    local part = array and tostring(key - 1) or tostring(key)
    local step = array and ("[" .. key .. "]") or ((path == "" and "" or ".") .. tostring(key))
    if value ~= nil and rawget(module, "_buffers")[key] then
      if not seen[value] then
        seen[value] = true
        found(value, prefix .. part, path .. step, "buffer", rawget(module, "_buffers")[key])
      end
    else
      visit(value, prefix .. part, path .. step, seen, found, depth + 1)
    end
  end
end

function visit(value, name, path, seen, found, depth)
  if native.is_parameter(value) then
    if seen[value] then return end
    seen[value] = true
    found(value, name, path, "parameter")
  elseif nn.is_module(value) then
    visit_module(value, name, path, seen, found, depth)
  elseif type(value) == "table" and getmetatable(value) == nil then
    visit_table(value, name, path, seen, found, depth)
  end
end

-- Everything of one kind below self, in order: a list of { value, name, path, persistent }.
local function collect(self, kind)
  local list = {}
  visit_module(self, "", "", {}, function(value, name, path, what, extra)
    if what == kind then list[#list + 1] = { value, name, path, extra } end
  end, 0)
  return list
end

-- The module and every one inside it: a list of { module, name, path }.
function native.module_paths(module) return collect(module, "module") end

local function values_of(list)
  local values = {}
  for i, entry in ipairs(list) do values[i] = entry[1] end
  return values
end

-- An iterator of name, value over a list.
local function pairs_of(list)
  local i = 0
  return function()
    i = i + 1
    if list[i] then return list[i][2], list[i][1] end
  end
end

-- Module:parameters() -> list: The parameters, in order of first assignment; their names ride along for optimizers and reports. Example: local opt =
-- gb.optim.AdamW(gb.nn.Linear(2, 2):parameters(), { lr = 1e-3 })
function Module:parameters()
  local list = collect(self, "parameter")
  local values = values_of(list)
  local names = {}
  for i, entry in ipairs(list) do names[i] = entry[2] end
  return setmetatable(values, { names = names })
end

-- Module:named_parameters() -> function: The parameters, as an iterator of name, tensor. Names are those of PyTorch's files and count from 0
-- ("blocks.0.weight" is model.blocks[1].weight). Example: for name, p in model:named_parameters() do print(name, p.shape) end
function Module:named_parameters() return pairs_of(collect(self, "parameter")) end
-- Module:buffers() -> list: The buffers: tensors that belong to the module but are not trained. Example: print(#model:buffers())
function Module:buffers() return values_of(collect(self, "buffer")) end
-- Module:named_buffers() -> function: The buffers, as an iterator of name, tensor. Example: for name, b in model:named_buffers() do print(name,
-- b.shape) end
function Module:named_buffers() return pairs_of(collect(self, "buffer")) end
-- Module:modules() -> list: The module itself and every one inside it. Example: print(#model:modules())
function Module:modules() return values_of(collect(self, "module")) end
-- Module:named_modules() -> function: The module itself, whose name is "", and every one inside it, as an iterator of name, module. Example: for
-- name, m in model:named_modules() do print(name, m) end
function Module:named_modules() return pairs_of(collect(self, "module")) end

local pins = { float32 = true, float16 = true, bfloat16 = true }

-- Module:precision(name?: string) -> any: Pin what this module runs in when it is called, inside an autocast scope or outside: "float32" (autocast
-- off, 16-bit arguments made float32), "float16" or "bfloat16" (an autocast scope). Modules inside go along unless they are pinned themselves.
-- "inherit" takes the pin away. Returns the module; without a name, what it is pinned to, or nil. Example: print(model:precision())
function Module:precision(name)
  if name == nil then return self._precision or nil end
  if name ~= "inherit" and not pins[name] then
    fail(("precision: a module is pinned to float32, float16 or bfloat16, or to inherit; got %s"):format(tostring(name)))
  end
  rawset(self, "_precision", pins[name] and name or false)
  return self
end

-- Module:children() -> list: The modules held directly. Example: print(#model:children())
function Module:children()
  local list = {}
  for _, entry in ipairs(collect(self, "module")) do
    if entry[1] ~= self and not entry[2]:find(".", 1, true) then list[#list + 1] = entry[1] end
  end
  return list
end

-- ====}

-- {==== what a module can be told ====

-- Module:apply(fn: function) -> module: Run fn on every module inside, then on this one. Example: model:apply(function(m) m.training = true end)
function Module:apply(fn)
  if type(fn) ~= "function" then fail(("Module:apply takes a function, got %s"):format(type(fn))) end
  local list = self:modules()
  for i = #list, 1, -1 do fn(list[i]) end
  return self
end

-- Module:train(mode?: bool) -> module: Training on (or off) here and in every module inside: dropout drops, batch norms follow the batch. Example:
-- model:train()
function Module:train(mode)
  if mode == nil then mode = true end
  for _, module in ipairs(self:modules()) do rawset(module, "training", mode) end
  return self
end

-- Module:eval() -> module: Training off here and in every module inside. Example: model:eval() model:train()
function Module:eval() return self:train(false) end

-- Module:to(targets...) -> module: Move or convert floating parameters and buffers, keeping their identity. Takes a device, a dtype, or a precision
-- object, in any order. Errors: a dtype that is not floating. Example: model:to("cpu", gb.amp.precision("32-true"))
function Module:to(...)
  local device, dtype
  for i = 1, select("#", ...) do
    local what = select(i, ...)
    if type(what) == "string" and native.is_dtype(what) and not gb.empty(0, { dtype = what }):is_floating_point() then
      fail(("Module:to takes a floating dtype, not %s"):format(what))
    end
    if type(what) == "table" and what.autocast ~= nil then dtype = what.parameters or dtype
    elseif type(what) == "string" and native.is_dtype(what) then dtype = what
    elseif type(what) == "string" then device = what
    elseif what ~= nil then fail(("Module:to takes a device, a dtype or a precision, not %s"):format(gb.is_tensor(what) and "a tensor" or type(what))) end
  end
  for _, kind in ipairs { "parameter", "buffer" } do
    for _, entry in ipairs(collect(self, kind)) do
      native.convert_(entry[1], device, entry[1]:is_floating_point() and dtype or nil)
    end
  end
  return self
end

-- Module:zero_grad(): Forget the gradients of all parameters. Example: model:zero_grad()
function Module:zero_grad()
  for _, p in ipairs(self:parameters()) do p.grad = nil end
end

-- Module:requires_grad_(on?: bool) -> module: Gradients by all parameters are wanted (or not). Example: gb.nn.Linear(2, 2):requires_grad_(false)
function Module:requires_grad_(value)
  if value ~= nil and type(value) ~= "boolean" then fail(("Module:requires_grad_ takes true or false, got %s"):format(type(value))) end
  for _, p in ipairs(self:parameters()) do p:requires_grad_(value == nil or value) end
  return self
end

-- Module:register_parameter(name: string, parameter?: tensor): A parameter under a name that is computed. Example:
-- gb.nn.Identity():register_parameter("scale", gb.ones(1))
function Module:register_parameter(name, parameter)
  if type(name) ~= "string" then fail(("Module:register_parameter takes a name, got %s"):format(type(name))) end
  self[name] = parameter and (native.is_parameter(parameter) and parameter or nn.Parameter(parameter))
end

-- Module:register_buffer(name: string, tensor?: tensor, options?: table): A tensor that belongs to the module but is not trained. options:
-- persistent = false keeps it out of state_dict. Example: gb.nn.Identity():register_buffer("mean", gb.zeros(1))
function Module:register_buffer(name, tensor, options)
  if type(name) ~= "string" then fail(("Module:register_buffer takes a name, got %s"):format(type(name))) end
  if options ~= nil and type(options) ~= "table" then fail(("Module:register_buffer takes its options in a table, got %s"):format(type(options))) end
  if tensor ~= nil and not gb.is_tensor(tensor) then fail(("Module:register_buffer takes a tensor, got %s"):format(type(tensor))) end
  self._buffers[name] = (options and options.persistent == false) and "transient" or "persistent"
  self[name] = tensor
end

-- Module:register_forward_hook(fn: function) -> function: fn(module, inputs, outputs...) after forward; a non-nil result replaces the output.
-- Returns a function that removes it. Example: local remove = model:register_forward_hook(function(m, inputs, y) print(y.shape) end) remove()
function Module:register_forward_hook(fn)
  if type(fn) ~= "function" then fail(("Module:register_forward_hook takes a function, got %s"):format(type(fn))) end
  local hooks = self._hooks or {}
  rawset(self, "_hooks", hooks)
  hooks[#hooks + 1] = fn
  return function()
    for i = #hooks, 1, -1 do
      if hooks[i] == fn then table.remove(hooks, i) return end
    end
  end
end

-- Module:share(other: module) -> module: Use other's parameters and buffers as one's own (tied weights): both must be of one class and shape.
-- Errors: a module of another class. Example: gb.nn.Linear(2, 2):share(gb.nn.Linear(2, 2))
function Module:share(other)
  local pairs_left, seen = { { self, other } }, { [self] = true } -- a worklist: a module may hold itself
  for _, pair in ipairs(pairs_left) do
    local module, source = pair[1], pair[2]
    if getmetatable(source) ~= getmetatable(module) then fail("Module:share takes a module of the same class") end
    for _, key in ipairs(rawget(module, "_order")) do
      local mine, theirs = rawget(module, key), rawget(source, key)
      if native.is_parameter(mine) or rawget(module, "_buffers")[key] then rawset(module, key, theirs)
      elseif nn.is_module(mine) and not seen[mine] then
        seen[mine] = true
        pairs_left[#pairs_left + 1] = { mine, theirs }
      end
    end
  end
  return self
end

-- ====}

-- {==== state ====

-- Module:state_dict() -> table: Parameters and persistent buffers by name, detached, sharing memory with the module. Names are those of PyTorch's
-- files and count from 0 ("blocks.0.weight" is model.blocks[1].weight); what is shared has its first name only. Example: local state =
-- model:state_dict()
function Module:state_dict()
  local state = {}
  for _, entry in ipairs(collect(self, "parameter")) do state[entry[2]] = entry[1]:detach() end
  for _, entry in ipairs(collect(self, "buffer")) do
    if entry[4] == "persistent" then state[entry[2]] = entry[1]:detach() end
  end
  return state
end

local function shape_text(t) return table.concat(t.shape, "x") end

-- What a name leads to below module; a parameter that is shared has one for each way to it.
local function named(module, name)
  local value = module
  for part in name:gmatch("[^.]+") do
    if not nn.is_module(value) and not (type(value) == "table" and getmetatable(value) == nil) then return nil end
    local position, held = math.tointeger(tonumber(part)), nil
    if position then held = rawget(value, position + 1) end
    if held == nil then held = rawget(value, part) end
    value = held
  end
  return value
end

-- state[name] as what can be copied to value.
local function checked(state, name, value)
  local source = state[name]
  if not gb.is_tensor(source) then fail(("load_state_dict: %s is a %s in the state, not a tensor"):format(name, type(source))) end
  if shape_text(source) ~= shape_text(value) then
    fail(("load_state_dict: %s has shape %s in the state, %s in the module"):format(name, shape_text(source), shape_text(value)))
  end
  return source
end

-- Module:load_state_dict(state: table, options?: table) -> list, list: Copy state into the module. Missing and unexpected names are an error unless
-- options.strict is false; returns both lists. What is shared may come under any of its names, or under several with the same bits. Errors:
-- tensors of another shape; a shared one with two values. Example: model:load_state_dict(model:state_dict())
function Module:load_state_dict(state, options)
  if type(state) ~= "table" then fail(("load_state_dict takes a table of tensors by name, got %s"):format(type(state))) end
  if options ~= nil and type(options) ~= "table" then fail(("load_state_dict takes its options in a table, got %s"):format(type(options))) end
  local strict = not (options and options.strict == false)
  local entries, known, from, held = {}, {}, {}, {} -- from: the name in the state of each value; held: is it a parameter or a buffer?
  for _, kind in ipairs { "parameter", "buffer" } do
    for _, entry in ipairs(collect(self, kind)) do
      local value, name = entry[1], entry[2]
      entries[#entries + 1], known[name], held[value] = entry, true, true
      if state[name] ~= nil then from[value] = name end
    end
  end
  local others, unexpected = {}, {}
  for name in pairs(state) do
    if not known[name] then others[#others + 1] = name end
  end
  table.sort(others, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(others) do
    local value = type(name) == "string" and named(self, name)
    if not held[value] then unexpected[#unexpected + 1] = tostring(name)
    elseif not from[value] then from[value] = name
    else
      local a, b = checked(state, from[value], value), checked(state, name, value)
      if not native.same_bits(a, b) then
        fail(("load_state_dict: %s and %s are one tensor in the module, but two with different values in the state"):format(from[value], name))
      end
    end
  end
  local missing, plan = {}, {}
  for _, entry in ipairs(entries) do
    local value, name = entry[1], from[entry[1]]
    if name then plan[#plan + 1] = { value, checked(state, name, value) }
    elseif entry[4] ~= "transient" then missing[#missing + 1] = entry[2] end
  end
  if strict and (#missing > 0 or #unexpected > 0) then
    fail(("load_state_dict: missing: %s; unexpected: %s (strict = false ignores this)"):format(
      #missing > 0 and table.concat(missing, ", ") or "none", #unexpected > 0 and table.concat(unexpected, ", ") or "none"))
  end
  gb.no_grad(function()
    for _, pair in ipairs(plan) do pair[1]:copy_(pair[2]) end
  end)
  return missing, unexpected
end

-- ====}

-- {==== printing ====

local function count_text(n)
  local text = tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

-- Module:extra() -> string: What a layer says of itself between parentheses; layers override it. Example: print(gb.nn.Linear(2, 3):extra())
function Module:extra() return "" end

local function own_count(module)
  local total = 0
  for _, p in ipairs(module:parameters()) do total = total + p:numel() end
  return total
end

-- Append the lines of one module and of those it holds.
local function draw(module, label, indent, lines, seen)
  local count = own_count(module)
  local text = ("%s%s%s(%s)"):format(indent, label, getmetatable(module).__name, module:extra())
  if count > 0 then
    local first = module:parameters()[1]
    text = ("%s  %s parameters, %s"):format(text, count_text(count), first.dtype)
  end
  if seen[module] then
    lines[#lines + 1] = text .. "  (shared, shown above)"
    return
  end
  seen[module] = true
  lines[#lines + 1] = text
  local function below(value, name)
    if nn.is_module(value) then draw(value, name .. ": ", indent .. "  ", lines, seen)
    elseif type(value) == "table" and getmetatable(value) == nil and not seen[value] then
      seen[value] = true
      for i = 1, #value do below(value[i], name .. "[" .. i .. "]") end
      for _, key in ipairs(sorted_keys(value)) do below(value[key], name .. "." .. tostring(key)) end
    end
  end
  for _, key in ipairs(rawget(module, "_order")) do below(rawget(module, key), math.type(key) and "[" .. key .. "]" or tostring(key)) end
end

-- Module:describe() -> string: The tree of modules with parameter counts and dtypes, as tostring shows it. Example: print(model:describe())
function Module:describe()
  local lines = {}
  draw(self, "", "", lines, {})
  return table.concat(lines, "\n")
end

-- ====}

setmetatable(Module, { __call = construct, __name = "class Module" })
Module.__instance = { __index = Module, __newindex = assign, __call = call, __name = "Module", __module = true,
                      __tostring = function(self) return self:describe() end }
nn.Module = Module

-- gb.nn.Parameter(tensor: tensor, requires_grad?: bool) -> tensor: A tensor that modules discover and optimizers train. Takes over the tensor given.
-- Example: local weight = gb.nn.Parameter(gb.zeros(2, 3))
function nn.Parameter(tensor, requires_grad)
  return native.parameter(tensor, requires_grad ~= false)
end

-- gb.nn.library_class(name: string, calls?: bool) -> class: A class of the library: its intermediate results may be dropped as soon as the next
-- layer has read them, so forward must keep none of its arguments. calls: forward calls modules that it holds. Sets nn[name].
function nn.library_class(name, calls)
  local class = Module:extend(name)
  class._library = calls and "calls" or "layer"
  nn[name] = class
  return class
end
