-- nn/module.lua - Module: classes, discovery of parameters and submodules, state, printing.
--
-- What a module holds is found when it is asked for, in order of first assignment: parameters, buffers, modules, and
-- plain tables of them (their array part, then their other keys sorted). Something held twice is listed once. Names
-- count arrays from 0, as PyTorch's files do; paths in messages count from 1, as Lua does.
--
-- A module itself is an empty table, so that every assignment is seen. Its metatable's __index is the table of its
-- values, whose own metatable leads on to the class.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, copy = native.define, native.copy
local nn = gb.nn
local rawget, rawset, getmetatable, setmetatable, type, ipairs, next = rawget, rawset, getmetatable, setmetatable, type,
  ipairs, next
local format, find, match, gmatch, gsub, reverse = string.format, string.find, string.match, string.gmatch, string.gsub,
  string.reverse
local sub = string.sub
local concat, sort, pack, unpack, remove = table.concat, table.sort, table.pack, table.unpack, table.remove

local Module = { __name = "Module" }
Module.__index = Module

local fields = {} -- names a module uses for itself
for _, name in ipairs { "_order", "_buffers", "_hooks", "_precision", "_plain", "training" } do fields[name] = true end

-- The table of a module's values; its class.
local function values_of(module) return getmetatable(module).__index end
local function class_of(module) return getmetatable(values_of(module)).__index end
native.values_of, native.class_of = values_of, class_of

-- Note whether a module is a layer of the library without hooks and with its class's forward: then nothing but its
-- caller can hold what goes into it and comes out of it.
local function note_plain(module)
  local values = values_of(module)
  values._plain = values._library == "layer" and not values._hooks and rawget(values, "forward") == nil
end

-- Give a module a forward of its own, or with nil that of its class.
function native.replace_forward(module, forward)
  rawset(values_of(module), "forward", forward)
  note_plain(module)
end

-- The hooks of a module: false, or what hooks_of makes.
function native.set_hooks(module, hooks)
  values_of(module)._hooks = hooks
  note_plain(module)
end

local function is_module(value)
  local meta = type(value) == "table" and getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__module") == true
end

local function type_name(value) return gb.is_tensor(value) and "a tensor" or type(value) end

-- What a layer of this name computes of is a tensor, or an error.
function native.check_tensor(name, x)
  if not gb.is_tensor(x) then fail(format("%s expects a tensor, got %s", name, type_name(x))) end
end

-- Record the order of first assignment, keep methods from being hidden, and parameters from being taken out of training
-- unseen.
local function assign(self, key, value)
  local values = values_of(self)
  if fields[key] then
    if key ~= "training" or type(value) ~= "boolean" then
      fail(format("%s.%s is the module's own%s; give the field another name", class_of(self).__name, key,
        key == "training" and ", true or false" or ""))
    end
    rawset(values, key, value)
    return
  end
  local class, held = getmetatable(values).__index, rawget(values, key)
  if type(key) == "string" and type(class[key]) == "function" then
    fail(format("%s.%s is a method; give the field another name", class.__name, key))
  end
  if gb.is_tensor(value) and native.is_parameter(held) and not native.is_parameter(value) then
    fail(format("%s.%s is a parameter, and a plain tensor in its place would not be trained; copy values with \z
      %s:copy_(tensor) inside gb.no_grad, "
      .. "or assign gb.nn.Parameter(tensor)", class.__name, native.shown(key), native.shown(key)))
  end
  if values._buffers[key] then
    if native.is_parameter(value) then values._buffers[key] = nil
    elseif value ~= nil and not gb.is_tensor(value) then
      fail(format("%s.%s is a buffer, a tensor; got %s", class.__name, tostring(key), type_name(value)))
    end
  end
  local order = values._order
  if not order.known[key] then
    order.known[key] = true
    order[#order + 1] = key
  end
  rawset(values, key, value)
end

-- The fields of a module in order of first assignment; those of a ModuleDict are its items.
local function each_field(self)
  local values, order, i = values_of(self), values_of(self)._order, 0
  return function()
    local key
    repeat
      i = i + 1
      key = order[i]
    until key == nil or rawget(values, key) ~= nil
    return key, key ~= nil and rawget(values, key) or nil
  end
end

local function length(self) return #values_of(self) end

-- fn(...) with autocast off and 16-bit tensors among the arguments made float32.
local function in_float32(fn, ...)
  local values = pack(...)
  for i = 1, values.n do
    local x = values[i]
    if gb.is_tensor(x) and (x.dtype == "float16" or x.dtype == "bfloat16") then values[i] = x:to("float32") end
  end
  return gb.amp.disable(fn, unpack(values, 1, values.n))
end
native.in_float32 = in_float32

-- fn(self, ...) in the precision that self is pinned to, if it is.
local function pinned(self, fn, ...)
  local precision = self._precision
  if not precision then return fn(self, ...) end
  if precision == "float32" then return in_float32(fn, self, ...) end
  return gb.amp.autocast(precision, fn, self, ...)
end
native.pinned = pinned

-- What hooks before forward make of the inputs.
local function prepared(self, before, ...)
  local inputs = pack(...)
  for _, hook in ipairs(copy(before)) do -- which may remove itself
    local given = hook(self, { unpack(inputs, 1, inputs.n) })
    if type(given) == "table" and not is_module(given) then
      inputs = { n = rawlen(given) }
      for i = 1, inputs.n do inputs[i] = rawget(given, i) end
    elseif given ~= nil then inputs = pack(given) end
  end
  return unpack(inputs, 1, inputs.n)
end

-- Where forward or a hook after it fails, those hooks run that are always called and have not been. What they raise
-- themselves is not told: the first error is.
local function guard(self, always, ran, inputs)
  return setmetatable({}, { __close = function(_, why)
    if why == nil then return end
    for _, hook in ipairs(copy(always)) do
      if not ran[hook] then pcall(hook, self, inputs) end
    end
  end })
end

local function call_after(self, hooks, ...)
  local ran = {}
  local _ <close> = hooks.always and guard(self, hooks.always, ran, { ... })
  local result = pack(pinned(self, self.forward, ...))
  for _, hook in ipairs(copy(hooks)) do -- which may remove itself
    ran[hook] = true
    local replaced = hook(self, { ... }, unpack(result, 1, result.n))
    if replaced ~= nil then result = pack(replaced) end
  end
  return unpack(result, 1, result.n)
end

-- The values, with those tensors among them that have gradients led through one node. on_gradients is called in
-- backward with their gradients, each in its value's place, and may change them. Returns also whether there are any.
local function led_through(name, on_gradients, values)
  local places, through = {}, {}
  for i = 1, values.n do
    local x = values[i]
    if gb.is_tensor(x) and x.requires_grad then places[#places + 1], through[#through + 1] = i, x end
  end
  if #places == 0 then return values, false end
  local node = gb.Function { name = name,
    forward = function(_, ...)
      local parts = pack(...)
      for i = 1, parts.n do parts[i] = parts[i]:view(parts[i].shape) end
      return unpack(parts, 1, parts.n)
    end,
    backward = function(_, ...)
      local gradients = { n = values.n }
      for i, place in ipairs(places) do gradients[place] = (select(i, ...)) end
      gradients = on_gradients(gradients) or gradients
      local list = {}
      for i, place in ipairs(places) do list[i] = rawget(gradients, place) end
      return unpack(list, 1, #places)
    end }
  local made = { node(unpack(through)) }
  for i, place in ipairs(places) do values[place] = made[i] end
  return values, true
end

-- A table that a hook gave in place of gradients, or nil.
local function replacement(given, who)
  if given ~= nil and (type(given) ~= "table" or is_module(given)) then
    fail(format("%s: a hook gives nothing, or a list of gradients in place of those it got, got %s", who,
      type_name(given)))
  end
  return given
end

-- A call between two nodes, whose gradients the hooks of backward are told: those of the outputs come first, then those
-- of the inputs; where no input has one, at once.
local function call_between(self, hooks, ...)
  if not gb.is_grad_enabled() then return call_after(self, hooks, ...) end
  local of_outputs
  local function tell(gradients)
    for _, hook in ipairs(copy(hooks.backward or {})) do
      gradients = replacement(hook(self, gradients, of_outputs), "register_full_backward_hook") or gradients
    end
    return gradients
  end
  local inputs, any = led_through("module_inputs", tell, pack(...))
  local result = pack(call_after(self, hooks, unpack(inputs, 1, inputs.n)))
  local outputs = led_through("module_outputs", function(gradients)
    for _, hook in ipairs(copy(hooks.before_backward or {})) do
      gradients = replacement(hook(self, gradients), "register_full_backward_pre_hook") or gradients
    end
    of_outputs = gradients
    if not any then tell({ n = inputs.n }) end
    return gradients
  end, result)
  return unpack(outputs, 1, outputs.n)
end

local function call_hooked(self, hooks, ...)
  local run = (hooks.backward or hooks.before_backward) and call_between or call_after
  if hooks.before then return run(self, hooks, prepared(self, hooks.before, ...)) end
  return run(self, hooks, ...)
end

local function dressed_call(self, ...)
  if self._hooks then return call_hooked(self, self._hooks, ...) end
  return pinned(self, self.forward, ...)
end

-- Under a profiler a call is a range with the class's name, and the outermost one lies in the phase "forward".
-- An audit and a profile are told of the module that runs.
local watched, depth = native.is_watched, 0
local function leave()
  native.range_pop()
  depth = depth - 1
  if depth == 0 then native.range_pop() end
end
local closing = setmetatable({}, { __close = leave })

local function watched_call(self, ...)
  if depth == 0 then native.range_push("forward") end
  native.range_push(class_of(self).__name)
  depth = depth + 1
  local _ <close> = closing
  local _ <close> = native.enter_audited and native.enter_audited(self)
  local _ <close> = native.enter_profiled and native.enter_profiled(self)
  return dressed_call(self, ...)
end

local function text_of(self) return self:describe() end

-- An instance of class, not initialised. What every call asks for is there from the beginning, so that no class is
-- looked through for it.
local function bare(class)
  local values = { _order = { known = {} }, _buffers = {}, _hooks = false, _precision = false,
    _plain = class._library == "layer", training = true }
  -- Most modules have neither hooks nor a precision, and nobody looks on: they pay for no more than being asked.
  local function call(self, ...)
    if watched() then return watched_call(self, ...) end
    if values._hooks or values._precision then return dressed_call(self, ...) end
    return self.forward(self, ...) -- of the values, or set past them by rawset
  end
  local self = setmetatable({}, {
    __index = setmetatable(values, class.__values), __newindex = assign, __call = call, __len = length,
      __name = class.__name, __module = true,
    __pairs = class.__pairs or each_field, __tostring = text_of,
  })
  return self
end

local function construct(class, ...)
  local self = bare(class)
  self:init(...)
  return self
end

-- Another module of the same class, which has the same values in its fields.
function native.twin(module)
  local twin, values = bare(class_of(module)), values_of(module)
  for _, key in ipairs(values._order) do
    if rawget(values, key) ~= nil then assign(twin, key, rawget(values, key)) end
  end
  for key, kind in next, values._buffers do values_of(twin)._buffers[key] = kind end
  values_of(twin).training, values_of(twin)._precision = values.training, values._precision
  return twin
end

local function new_class(name, parent)
  local class = { __name = name }
  class.__index = class
  class.__values = { __index = class }
  return setmetatable(class, { __index = parent, __call = construct, __name = "class " .. name })
end

Module.extend = define("Module:extend(name: string) -> class: A new class below this one; init(...) and \z
  forward(...) make it a layer. Example: local Net = gb.nn.Module:extend(\"Net\") function Net:forward(y) return y * \z
  2 end print(Net()(x))", "strict", function(parent, name)
  local class = new_class(name, parent)
  class._library = false
  return class
end)

native.describe("gb.nn.Module(arguments...: any) -> module: The class that every layer and model descends from: \z
  nn.Module:extend(name) makes a class, class(...) a module, module(...) calls its forward. Parameters and modules \z
  assigned to its fields are discovered. Example: local Net = gb.nn.Module:extend(\"Net\") function Net:init() \z
  self.head = gb.nn.Linear(4, 2) end", "strict")

Module.init = define("Module:init(arguments...: any): What a class does with the arguments of its constructor; \z
  classes define their own.", "strict",
  function() end)

Module.forward = define("Module:forward(arguments...: any) -> any: What calling the module computes; classes define \z
  their own. Errors: a class without one. Example: local y = model:forward(x)", "strict", function(self)
  local name = class_of(self).__name
  fail(format("%s has no forward; define function %s:forward(x)", name, name))
end)

nn.is_module = define("gb.nn.is_module(value?: any) -> bool: Is value a module? Example: print(gb.nn.is_module(model))",
  "strict", is_module)

-- {==== discovery ====

local function sorted_keys(table_)
  local keys = {}
  for key in pairs(table_) do
    if not (math.type(key) == "integer" and key >= 1 and key <= #table_) then keys[#keys + 1] = key end
  end
  sort(keys, function(a, b) return native.shown(a) < native.shown(b) end)
  return keys
end

-- Modules and tables within each other, at most: names grow with the square of it, and Lua's stack ends somewhere.
local MOST_DEPTH = 1000
local function check_depth(level)
  if level > MOST_DEPTH then
    fail(format("a module holds modules and tables within each other more than %d deep", MOST_DEPTH))
  end
end

-- A table of the recipe's own, whose modules and parameters are a module's, or a list that a method gave.
local function is_plain(value)
  local meta = getmetatable(value)
  return meta == nil or type(meta) == "table" and rawget(meta, "__list") == true
end

local visit -- (value, name, path, seen, found, level): add what value is or holds

local function visit_table(value, name, path, seen, found, level)
  if seen[value] then return end
  seen[value] = true
  check_depth(level)
  for i = 1, #value do visit(value[i], name .. "." .. (i - 1), path .. "[" .. i .. "]", seen, found, level + 1) end
  for _, key in ipairs(sorted_keys(value)) do
    visit(value[key], name .. "." .. native.shown(key), path .. "." .. native.shown(key), seen, found, level + 1)
  end
end

local function visit_module(module, name, path, seen, found, level)
  if seen[module] then return end
  seen[module] = true
  check_depth(level)
  found(module, name, path, "module")
  local prefix = name == "" and "" or name .. "."
  for _, key in ipairs(values_of(module)._order) do
    local value = rawget(values_of(module), key)
    local array = math.type(key) == "integer"
    local part = array and native.shown(key - 1) or native.shown(key)
    local step = array and ("[" .. key .. "]") or ((path == "" and "" or ".") .. native.shown(key))
    if value ~= nil and values_of(module)._buffers[key] then
      if not seen[value] then
        seen[value] = true
        found(value, prefix .. part, path .. step, "buffer", values_of(module)._buffers[key])
      end
    else
      visit(value, prefix .. part, path .. step, seen, found, level + 1)
    end
  end
end

function visit(value, name, path, seen, found, level)
  if native.is_parameter(value) then
    if seen[value] then return end
    seen[value] = true
    found(value, name, path, "parameter")
  elseif is_module(value) then
    visit_module(value, name, path, seen, found, level)
  elseif type(value) == "table" and is_plain(value) then
    visit_table(value, name, path, seen, found, level)
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

-- A list that says what it is where a loop of PyTorch's takes it for an iterator: calling it is an error.
local function list_of(values, who, loop, names)
  return setmetatable(values, { __list = names == nil, names = names, __call = function()
    fail(format("%s gives a list: %s", who, loop or format("for _, value in ipairs(model:%s()) do", who)))
  end })
end

local function first_of_each(list, who)
  local firsts = {}
  for i, entry in ipairs(list) do firsts[i] = entry[1] end
  return list_of(firsts, who)
end

-- An iterator of name, value over a list.
local function pairs_of(list)
  local i = 0
  return function()
    i = i + 1
    if list[i] then return list[i][2], list[i][1] end
  end
end

-- A method of Module, which every sandbox has.
local function method(text, fn) Module[match(text, "^Module:([%w_]+)")] = define(text, "strict", fn) end

local function parameters_of(self)
  local list, names = collect(self, "parameter"), {}
  for i, entry in ipairs(list) do names[i] = entry[2] end
  return list_of(first_of_each(list), "parameters", "for i, p in ipairs(model:parameters()) do", names)
end

method("Module:parameters() -> list: The parameters, in order of first assignment; their names ride along for \z
  optimizers and reports. Example: local opt = gb.optim.AdamW(gb.nn.Linear(2, 2):parameters(), { lr = 1e-3 })",
  parameters_of)
method("Module:named_parameters() -> function: The parameters, as an iterator of name, tensor. Names are those of \z
  PyTorch's files and count from 0 (\"blocks.0.weight\" is model.blocks[1].weight). Example: for name, p in \z
  model:named_parameters() do print(name, p.shape) end",
  function(self) return pairs_of(collect(self, "parameter")) end)
method("Module:buffers() -> list: The buffers: tensors that belong to the module but are not trained. Example: \z
  print(#model:buffers())",
  function(self) return first_of_each(collect(self, "buffer"), "buffers") end)
method("Module:named_buffers() -> function: The buffers, as an iterator of name, tensor. Example: for name, b in \z
  model:named_buffers() do print(name, b.shape) end", function(self) return pairs_of(collect(self, "buffer")) end)
method("Module:modules() -> list: The module itself and every one inside it. Example: print(#model:modules())",
  function(self) return first_of_each(collect(self, "module"), "modules") end)
method("Module:named_modules() -> function: The module itself, whose name is \"\", and every one inside it, as an \z
  iterator of name, module. Example: for name, m in model:named_modules() do print(name, m) end",
  function(self) return pairs_of(collect(self, "module")) end)

method("Module:precision(name?: \"float32\"|\"float16\"|\"bfloat16\"|\"inherit\") -> any: Pin what this module runs \z
  in when it is called, inside an autocast scope or outside: \"float32\" (autocast off, 16-bit arguments made \z
  float32), \"float16\" or \"bfloat16\" (an autocast scope). Modules inside go along unless they are pinned \z
  themselves. \"inherit\" takes the pin away. Returns the module; without a name, what it is pinned to, or nil. \z
  Example: print(model:precision())", function(self, name)
  local values = values_of(self)
  if name == nil then return values._precision or nil end
  values._precision = name ~= "inherit" and name or false
  return self
end)

method("Module:children() -> list: The modules held directly. Example: print(#model:children())", function(self)
  local list = {}
  for _, entry in ipairs(collect(self, "module")) do
    if entry[1] ~= self and not find(entry[2], ".", 1, true) then list[#list + 1] = entry[1] end
  end
  return list_of(list, "children")
end)

method("Module:named_children() -> list: The modules held directly, each as { name, module }. Example: for _, entry \z
  in ipairs(model:named_children()) do print(entry[1]) end", function(self)
  local list = {}
  for _, entry in ipairs(collect(self, "module")) do
    if entry[1] ~= self and not find(entry[2], ".", 1, true) then list[#list + 1] = { entry[2], entry[1] } end
  end
  return list_of(list, "named_children", "for _, entry in ipairs(model:named_children()) do local name, child = \z
    entry[1], entry[2]")
end)

-- What a module holds of a kind under a name with dots, or an error that says what there is.
local function part_named(self, kind, name)
  local entries, names = collect(self, kind), {}
  for _, entry in ipairs(entries) do
    if entry[2] == name then return entry[1] end
    if entry[2] ~= "" then names[#names + 1] = entry[2] end
  end
  fail(format("%s holds no %s '%s'%s", class_of(self).__name, kind, name, #names > 0 and #names < 20 and
    "; there are " .. concat(names, ", ") or ""))
end

method("Module:get_submodule(name: string) -> module: The module of that name, with dots between levels; the empty \z
  name is this module. Errors: none of that name. Example: local head = model:get_submodule(\"\")",
  function(self, name) return part_named(self, "module", name) end)
method("Module:get_parameter(name: string) -> tensor: The parameter of that name, with dots between levels. Errors: \z
  none of that name. Example: local w = gb.nn.Linear(2, 2):get_parameter(\"weight\")",
  function(self, name) return part_named(self, "parameter", name) end)
method("Module:get_buffer(name: string) -> tensor: The buffer of that name, with dots between levels. Errors: none of \z
  that name. Example: local mean = gb.nn.BatchNorm1d(2):get_buffer(\"running_mean\")",
  function(self, name) return part_named(self, "buffer", name) end)

-- ====}

-- {==== what a module can be told ====

method("Module:apply(fn: function) -> module: Run fn on every module inside, then on this one. Example: \z
  model:apply(function(m) m.training = true end)", function(self, fn)
  local list = collect(self, "module")
  for i = #list, 1, -1 do fn(list[i][1]) end
  return self
end)

local function set_training(self, mode)
  for _, entry in ipairs(collect(self, "module")) do values_of(entry[1]).training = mode end
  return self
end

method("Module:train(mode: bool = true) -> module: Training on (or off) here and in every module inside: dropout \z
  drops, batch norms follow the batch. Example: model:train()", set_training)
method("Module:eval() -> module: Training off here and in every module inside. Example: model:eval() model:train()",
  function(self) return set_training(self, false) end)

-- Parameters and buffers on a device, in a dtype; nil leaves what they have. Integers keep their dtype.
local function convert(self, device, dtype)
  if dtype and not gb.empty(0, { dtype = dtype }):is_floating_point() then
    fail(format("Module:to takes a floating dtype, not %s", dtype))
  end
  for _, kind in ipairs { "parameter", "buffer" } do
    for _, entry in ipairs(collect(self, kind)) do
      native.convert_(entry[1], device, entry[1]:is_floating_point() and dtype or nil)
    end
  end
  return self
end

method("Module:to(targets...: any) -> module: Move or convert floating parameters and buffers, keeping their \z
  identity. Takes a device, a dtype, or a precision or its name, in any order. Errors: a dtype that is not floating. \z
  Example: model:to(\"cpu\", gb.amp.precision(\"32-true\"))",
  function(self, ...)
    local device, dtype
    for i = 1, select("#", ...) do
      local what = select(i, ...)
      local precision = native.private(what, "precision")
      if precision then dtype = precision.parameters or dtype
      elseif type(what) == "string" and native.is_dtype(what) then dtype = what
      elseif type(what) == "string" then device = what
      elseif what ~= nil then
        fail(format("Module:to takes a device, a dtype or a precision, not %s", type_name(what)))
      end
    end
    return convert(self, device, dtype)
  end)

method("Module:cpu() -> module: Parameters and buffers on the CPU. Example: model:cpu()",
  function(self) return convert(self, "cpu") end)
method("Module:cuda(index: count = 0) -> module: Parameters and buffers on a GPU. Errors: there is none. Example: \z
  if gb.cuda.is_available() then gb.nn.Linear(2, 2):cuda() end",
  function(self, index) return convert(self, format("cuda:%d", index)) end)
for name, dtype in next, { double = "float64", float = "float32", half = "float16", bfloat16 = "bfloat16" } do
  method(format("Module:%s() -> module: Floating parameters and buffers in %s. Example: gb.nn.Linear(2, 2):%s()", name,
    dtype, name),
    function(self) return convert(self, nil, dtype) end)
end

method("Module:zero_grad(): Forget the gradients of all parameters. Example: model:zero_grad()", function(self)
  for _, entry in ipairs(collect(self, "parameter")) do entry[1].grad = nil end
end)

method("Module:requires_grad_(on: bool = true) -> module: Turn gradients with respect to all parameters on or off. \z
  Example: gb.nn.Linear(2, 2):requires_grad_(false)", function(self, on)
  for _, entry in ipairs(collect(self, "parameter")) do entry[1]:requires_grad_(on) end
  return self
end)

method("Module:register_parameter(name: string, parameter?: tensor): A parameter under a name that is computed. \z
  Example: gb.nn.Identity():register_parameter(\"scale\", gb.ones(1))", function(self, name, parameter)
  self[name] = parameter and (native.is_parameter(parameter) and parameter or nn.Parameter(parameter))
end)

method("Module:register_buffer(name: string, tensor?: tensor; persistent: bool = true): A tensor that belongs to \z
  the module but is not trained; persistent = false keeps it out of state_dict. Example: \z
  gb.nn.Identity():register_buffer(\"mean\", gb.zeros(1))",
  function(self, name, tensor, options)
    self[name] = tensor
    self._buffers[name] = options.persistent and "persistent" or "transient"
  end)

-- What takes a hook off again: called, or by its remove(), as PyTorch's handles and those of tensors have it.
local function handle(off) return setmetatable({ remove = off }, { __call = off }) end

-- Put a function behind those of a list, or before them; returns the handle that takes it off again.
local function hang(hooks, fn, first)
  table.insert(hooks, first and 1 or #hooks + 1, fn)
  return handle(function()
    for i = #hooks, 1, -1 do
      if hooks[i] == fn then remove(hooks, i) return end
    end
  end)
end

-- The same with a list of a module's hooks by its name.
local function hang_on(hooks, list, fn, first)
  hooks[list] = hooks[list] or {}
  return hang(hooks[list], fn, first)
end

-- The hooks of a module: a list of those after forward, and lists of others, where there are any: `before` forward,
-- `always` (those after forward that run where it failed), `backward`, `before_backward`.
local function hooks_of(module)
  local hooks = module._hooks or {}
  native.set_hooks(module, hooks)
  return hooks
end

method("Module:register_forward_hook(fn: function; prepend: bool = false, always_call: bool = false) -> function: \z
  fn(module, inputs, outputs...) after forward; a non-nil result replaces the output. prepend: before the hooks there \z
  are. always_call: also where forward raises, without outputs, before the error goes on. Returns a function that \z
  removes it. Example: local remove = model:register_forward_hook(function(m, inputs, y) print(y.shape) end) remove()",
  function(self, fn, o)
    local hooks = hooks_of(self)
    local off = hang(hooks, fn, o.prepend)
    if not o.always_call then return off end
    local off_always = hang_on(hooks, "always", fn, o.prepend)
    return handle(function()
      off()
      off_always()
    end)
  end)

method("Module:register_forward_pre_hook(fn: function; prepend: bool = false) -> function: fn(module, inputs) before \z
  forward; a list that it gives replaces the inputs, anything else but nil is the only one. prepend: before the hooks \z
  there are. Returns a function that removes it. Example: local remove = \z
  model:register_forward_pre_hook(function(m, inputs) return { inputs[1] * 2 } end) remove()",
  function(self, fn, o) return hang_on(hooks_of(self), "before", fn, o.prepend) end)

method("Module:register_full_backward_hook(fn: function; prepend: bool = false) -> function: fn(module, grad_inputs, \z
  grad_outputs) in backward, when the gradients of the tensors that forward was given are there: lists in the order \z
  of the arguments and of the results, nil where there is no gradient, n their length. A list that it gives replaces \z
  those of the inputs. Calls made before the hook have none. Returns a function that removes it. Example: local \z
  remove = model:register_full_backward_hook(function(m, ins, outs) print(outs[1]:norm()) end) remove()",
  function(self, fn, o) return hang_on(hooks_of(self), "backward", fn, o.prepend) end)

method("Module:register_full_backward_pre_hook(fn: function; prepend: bool = false) -> function: fn(module, \z
  grad_outputs) in backward, before it goes through the module: a list in the order of the results; one that it gives \z
  replaces them. Returns a function that removes it. Example: local remove = \z
  model:register_full_backward_pre_hook(function(m, outs) return { outs[1] * 2 } end) remove()",
  function(self, fn, o) return hang_on(hooks_of(self), "before_backward", fn, o.prepend) end)

method("Module:share(other: module) -> module: Use other's parameters and buffers as one's own (tied weights): both \z
  must be of one class and shape. Errors: a module of another class. Example: gb.nn.Linear(2, \z
  2):share(gb.nn.Linear(2, 2))", function(self, other)
  local pairs_left, seen, plan = { { self, other } }, { [self] = true }, {} -- a worklist: a module may hold itself
  for _, two in ipairs(pairs_left) do
    local module, source = two[1], two[2]
    if not is_module(source) or class_of(source) ~= class_of(module) then
      fail("Module:share takes a module of the same class")
    end
    local own, given = values_of(module), values_of(source)
    for _, key in ipairs(own._order) do
      local mine, theirs = rawget(own, key), rawget(given, key)
      if native.is_parameter(mine) or own._buffers[key] and mine then
        if not gb.is_tensor(theirs) or concat(mine.shape, "x") ~= concat(theirs.shape, "x") then
          fail(format("Module:share: %s has shape %s here and %s in the other", native.shown(key),
            concat(mine.shape, "x"), gb.is_tensor(theirs) and concat(theirs.shape, "x") or "none"))
        end
        plan[#plan + 1] = { own, key, theirs }
      elseif is_module(mine) and not seen[mine] then
        seen[mine] = true
        pairs_left[#pairs_left + 1] = { mine, theirs }
      end
    end
  end
  for _, one in ipairs(plan) do rawset(one[1], one[2], one[3]) end
  return self
end)

-- ====}

-- {==== state ====

method("Module:state_dict() -> table: Parameters and persistent buffers by name, detached, sharing memory with the \z
  module. Names are those of PyTorch's files and count from 0 (\"blocks.0.weight\" is model.blocks[1].weight); what \z
  is shared has its first name only. Example: local state = model:state_dict()", function(self)
  local state = {}
  for _, entry in ipairs(collect(self, "parameter")) do state[entry[2]] = entry[1]:detach() end
  for _, entry in ipairs(collect(self, "buffer")) do
    if entry[4] == "persistent" then state[entry[2]] = entry[1]:detach() end
  end
  return state
end)

-- What is no tensor, for an error.
local function described(value)
  local name = native.type_name(value)
  return find(name, "^a ") and name or "a " .. name
end

local function shape_text(t) return t.ndim == 0 and "[]" or concat(t.shape, "x") end

-- What a name leads to below module; a parameter that is shared has one for each way to it.
local function named(module, name)
  local value = module
  for part in gmatch(name, "[^.]+") do
    if is_module(value) then value = values_of(value)
    elseif type(value) ~= "table" or not is_plain(value) then return nil end
    local position, held = math.tointeger(tonumber(part)), nil
    if position then held = rawget(value, position + 1) end
    if held == nil then held = rawget(value, part) end
    value = held
  end
  return value
end

-- Where a name of another library leads to: the module that is called so there, the prefix of its names, and a list of
-- names below it, of what lies there one after another; nil where there is none. A class tells by
-- _names_elsewhere(module): { name there = { name here, ... } }.
local function known_elsewhere(self, name)
  for _, pattern in ipairs { "[^.]+$", "[^.]+%.[^.]+$" } do -- such names have one part or two
    local rest = match(name, pattern)
    local prefix = rest and sub(name, 1, #name - #rest)
    local module = prefix and named(self, prefix)
    local names = is_module(module) and class_of(module)._names_elsewhere
    local here = names and names(module)[rest]
    if here then return module, prefix, here end
  end
end

-- Put source, which the state has under another library's name, under the names of `here`.
local function spread(state, name, source, module, prefix, here)
  local wanted = named(module, here[1]).shape
  for i = 2, #here do wanted[1] = wanted[1] + named(module, here[i]):size(1) end
  if not gb.is_tensor(source) or shape_text(source) ~= concat(wanted, "x") then
    fail(format("load_state_dict: %s is %s in the state, where the module takes a tensor of shape %s", name,
      gb.is_tensor(source) and "of shape " .. shape_text(source) or described(source), concat(wanted, "x")))
  end
  local first = 1
  state[name] = nil
  for _, own in ipairs(here) do
    local count = named(module, own):size(1)
    state[prefix .. own] = source:narrow(1, first, count)
    first = first + count
  end
end

-- The state with names of another library as those here. Where both are there, the others stay, and are unexpected.
local function renamed(self, state)
  local others, result = {}, state
  for name in next, state do
    if type(name) == "string" and named(self, name) == nil then others[#others + 1] = name end
  end
  sort(others)
  for _, name in ipairs(others) do
    local module, prefix, here = known_elsewhere(self, name)
    local free = module ~= nil
    for _, own in ipairs(here or {}) do
      free = free and result[prefix .. own] == nil and gb.is_tensor(named(module, own))
    end
    if free then
      if result == state then result = copy(state) end
      spread(result, name, state[name], module, prefix, here)
    end
  end
  return result
end

-- state[name] as what can be copied to value.
local function checked(state, name, value)
  local source = state[name]
  if not gb.is_tensor(source) then
    fail(format("load_state_dict: %s is %s in the state, not a tensor", name, described(source)))
  end
  if shape_text(source) ~= shape_text(value) then
    fail(format("load_state_dict: %s has shape %s in the state, %s in the module", name, shape_text(source),
      shape_text(value)))
  end
  return source
end

-- What load_state_dict would do: a list of { value of the module, its source }, and the names that are missing and
-- unexpected. Changes nothing.
local function plan_load(self, state)
  -- from: the name in the state of each value; held: is it a parameter or a buffer?
  local entries, known, from, held = {}, {}, {}, {}
  for _, kind in ipairs { "parameter", "buffer" } do
    for _, entry in ipairs(collect(self, kind)) do
      local value, name = entry[1], entry[2]
      entries[#entries + 1], known[name], held[value] = entry, true, true
      if state[name] ~= nil then from[value] = name end
    end
  end
  local others, unexpected = {}, {}
  for name in next, state do
    if not known[name] then others[#others + 1] = name end
  end
  sort(others, function(a, b) return native.shown(a) < native.shown(b) end)
  for _, name in ipairs(others) do
    local value = type(name) == "string" and named(self, name)
    if not held[value] then unexpected[#unexpected + 1] = native.shown(name)
    elseif not from[value] then from[value] = name
    else
      local a, b = checked(state, from[value], value), checked(state, name, value)
      if not native.same_bits(a, b) then
        fail(format("load_state_dict: %s and %s are one tensor in the module, but two with different values in the \z
          state", from[value], name))
      end
    end
  end
  local missing, plan = {}, {}
  for _, entry in ipairs(entries) do
    local value, name = entry[1], from[entry[1]]
    if name then plan[#plan + 1] = { value, checked(state, name, value) }
    elseif entry[4] ~= "transient" then missing[#missing + 1] = entry[2] end
  end
  return plan, missing, unexpected
end

method("Module:load_state_dict(state: table; strict: bool = true) -> list, list: Copy state into the module. \z
  Missing and unexpected names are an error unless strict is false; returns both lists. What is shared may come \z
  under any of its names, or under several with the same bits. MultiheadAttention takes PyTorch's names too \z
  (in_proj_weight, out_proj.bias, ...). Everything is checked before anything is changed. \z
  Errors: tensors of another shape; a shared one with two values. Example: model:load_state_dict(model:state_dict())",
  function(self, state, options)
  local plan, missing, unexpected = plan_load(self, renamed(self, state))
  if options.strict and (#missing > 0 or #unexpected > 0) then
    fail(format("load_state_dict: missing: %s; unexpected: %s (strict = false ignores this)",
      #missing > 0 and concat(missing, ", ") or "none",
      #unexpected > 0 and concat(unexpected, ", ") or "none"))
  end
  gb.no_grad(function()
    for _, entry in ipairs(plan) do entry[1]:copy_(entry[2]) end
  end)
  return missing, unexpected
end)

-- ====}

-- {==== printing ====

local function count_text(n)
  local text = reverse(gsub(reverse(tostring(n)), "(%d%d%d)", "%1,"))
  return (gsub(text, "^,", ""))
end

method("Module:extra() -> string: What a layer says of itself between parentheses; layers override it. Example: \z
  print(gb.nn.Linear(2, 3):extra())",
  function() return "" end)

-- The line of one module.
local function line_of(module, label, indent)
  local list, total = collect(module, "parameter"), 0
  for _, entry in ipairs(list) do total = total + entry[1]:numel() end
  local text = format("%s%s%s(%s)", indent, label, class_of(module).__name, module:extra())
  if total == 0 then return text end
  return format("%s  %s parameters, %s", text, count_text(total), list[1][1].dtype)
end

-- Append the lines of one module and of those it holds.
local function draw(module, label, indent, lines, seen)
  local text = line_of(module, label, indent)
  if seen[module] then
    lines[#lines + 1] = text .. "  (shared, shown above)"
    return
  end
  seen[module] = true
  lines[#lines + 1] = text
  local function below(value, name)
    if is_module(value) then draw(value, name .. ": ", indent .. "  ", lines, seen)
    elseif type(value) == "table" and is_plain(value) and not seen[value] then
      seen[value] = true
      for i = 1, #value do below(value[i], name .. "[" .. i .. "]") end
      for _, key in ipairs(sorted_keys(value)) do below(value[key], name .. "." .. native.shown(key)) end
    end
  end
  for key, value in each_field(module) do below(value, math.type(key) and "[" .. key .. "]" or native.shown(key)) end
end

method("Module:describe() -> string: The tree of modules with parameter counts and dtypes, as tostring shows it. \z
  Example: print(model:describe())",
  function(self)
    local lines = {}
    draw(self, "", "", lines, {})
    return concat(lines, "\n")
  end)

-- ====}

-- What PyTorch's modules have besides, for who calls it: a nil would be Lua's own error.
local function elsewhere(name, here)
  return function() fail(format("a module has no method '%s'; it is %s here", name, here)) end
end
local absent = {}
for name, here in pairs {
  add_module = "model[name] = module", register_module = "model[name] = module",
  set_submodule = "model[name] = module",
} do absent[name] = elsewhere(name, here) end

Module.__values = { __index = Module }
setmetatable(Module, { __call = construct, __name = "class Module", __index = absent })
nn.Module = Module

nn.Parameter = define("gb.nn.Parameter(tensor: tensor, requires_grad: bool = true) -> tensor: A tensor that modules \z
  discover and optimizers train. Takes over the tensor given. Example: local weight = gb.nn.Parameter(gb.zeros(2, \z
  3))", "strict", native.parameter)

-- A class of the library: its intermediate results may be dropped as soon as the next layer has read them, so forward
-- must keep none of its arguments. calls: forward calls modules that it holds.
local function library_class(name, calls)
  local class = new_class(name, Module)
  class._library = calls and "calls" or "layer"
  native.publish("gb.nn", name, class)
  return class
end
native.library_class, native.new_class = library_class, new_class

nn.library_class = define("gb.nn.library_class(name: string, calls: bool = false) -> class: A class of the library: \z
  its intermediate results may be dropped as soon as the next layer has read them, so forward must keep none of its \z
  arguments. calls: forward calls modules that it holds. Sets nn[name].", "strict", library_class)
