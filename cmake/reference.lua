-- cmake/reference.lua - writes what is made from the table of ops and from the records of public functions
-- (bindings/reader.h):
--
--   docs/reference.md    the reference, which is committed; `./dev docs` writes it
--   --types FILE         types for the Lua language server, so that editors complete and check; a build makes them
--
-- With the argument "--check" it writes nothing and returns a list of what is stale or undocumented.

local gb = require "gibbous"
local mode, types_path = ...
local problems = {}

-- {==== what there is ====

-- Objects whose kinds get their methods when the first one is made.
gb.Function { forward = function(_, x) return x * 1 end,
  backward = function(_, g) return g end }(gb.ones(1):requires_grad_())

-- of everything that is no op; arguments and result of an entry are parts of its signature
local names, entries = {}, {}
for _, row in ipairs(gb.test.public_names()) do
  local entry = not row.op and gb.test.help_entry(row.name)
  if entry and entry.name == row.name then
    entry.arguments, entry.result = entry.signature:match("(%b())"), entry.signature:match("%-> ([^)]*)$")
    entry.arguments = entry.arguments and entry.arguments:sub(2, -2)
    names[#names + 1], entries[row.name] = row.name, entry
  elseif not row.op then problems[#problems + 1] = row.name .. " has no record" end
end

local ops = {} -- the public rows, in the table's order
for _, row in ipairs(gb.test.ops()) do
  if row.public then ops[#ops + 1] = row end
end

-- ====}

-- The words of a text in lines of at most `width` columns.
local function lines_of(text, width)
  local lines, line = {}, nil
  for word in text:gmatch("%S+") do
    if line and #line + 1 + #word > width then
      lines[#lines + 1] = line
      line = word
    else
      line = line and line .. " " .. word or word
    end
  end
  lines[#lines + 1] = line
  return lines
end

-- {==== types for editors ====

-- The types of signatures as the language server writes them.
local types = {
  int = "integer", size = "integer", count = "integer", position = "integer", sizes = "integer|integer[]",
    shape = "integer[]",
  ints = "integer|integer[]", dim = "integer", dims = "integer|integer[]", number = "number", bool = "boolean",
    string = "string",
  path = "string", device = "string", tree = "table",
  dtype = "gb.DType", tensor = "gb.Tensor", tensors = "gb.Tensor|gb.Tensor[]",
  list = "any[]", table = "table", any = "any", ["function"] = "function",
  module = "gb.Module", class = "gb.Module", optimizer = "gb.Optimizer", scaler = "gb.GradScaler",
    schedule = "gb.Schedule", loader = "gb.DataLoader",
  dataset = "gb.dataset", text = "gb.text", tokens = "gb.tokens", precision = "gb.precision", policy = "gb.policy",
    hook = "gb.hook", progress = "gb.progress",
  expect = "gb.expect", logger = "gb.Logger",
}

-- Words of Lua's, which cannot name a parameter.
local function parameter_name(name) return name == "end" and "last" or name end

-- The annotations of one argument of an op: x, x|number, x?, xs..., name: type, name?: type = default.
local function op_argument(word)
  local name, optional, number, kind, default = word:match("^%s*([%w_]+)%.?%.?%.?(%??)|?(%a*):?%s*(%a*)%s*(=?.*)$")
  local type_ = kind ~= "" and types[kind] or word:find("%.%.%.") and "gb.Tensor[]" or number ~= "" and
    "gb.Tensor|number" or "gb.Tensor"
  return parameter_name(name), optional == "?" or default ~= "", type_
end

-- A text as a comment of annotations.
local function comment(text) return "--- " .. table.concat(lines_of(text, 140), "\n--- ") end

-- The parameters of an op: a list of { name, optional, type, spread (may its numbers be written out?) }, and the type
-- of its options or nil.
local function parameters_of(row)
  local arguments = row.signature:match("^(.-)%s*%->")
  local positional, named = arguments:match("^([^;]*);?(.*)$")
  local list, fields = {}, {}
  for word in positional:gmatch("[^,]+") do
    local name, optional, type_ = op_argument(word)
    list[#list + 1] = { name = name, optional = optional, type = type_,
      spread = word:find(":%s*dims") or word:find("^%s*shape: ints") }
    if optional then fields[#fields + 1] = ("%s?: %s"):format(name, type_) end
  end
  for word in named:gmatch("[^,]+") do
    local name, _, type_ = op_argument(word)
    fields[#fields + 1] = ("%s?: %s"):format(name, type_)
  end
  return list, #fields > 0 and ("{ %s }"):format(table.concat(fields, ", ")) or nil
end

-- The other ways to call an op: with its options in place of positional arguments that may be left out, and with sizes
-- or dimensions in a row.
local function add_overloads(lines, list, options, is_method, result)
  local shown = {}
  for i, p in ipairs(list) do
    shown[i] = ("%s%s: %s"):format(is_method and i == 1 and "self" or p.name, p.optional and "?" or "", p.type)
  end
  local function add(count, last)
    local words = table.move(shown, 1, count, 1, {})
    words[#words + 1] = last
    lines[#lines + 1] = ("---@overload fun(%s): %s"):format(table.concat(words, ", "), result)
  end
  for count = #list - 1, 1, -1 do
    if not options or not list[count + 1].optional then break end
    add(count, "options?: " .. options)
  end
  if list[#list].spread then add(#list - 1, "...: integer") end
end

-- The lines of one op as a function called `path`, its first argument left out where it is the tensor itself.
local function op_lines(row, path, is_method)
  local list, options = parameters_of(row)
  local lines, names_, results = { comment(row.doc) }, {}, {}
  for i = is_method and 2 or 1, #list do
    lines[#lines + 1] = ("---@param %s%s %s"):format(list[i].name, list[i].optional and "?" or "", list[i].type)
    names_[#names_ + 1] = list[i].name
  end
  if options then
    lines[#lines + 1] = ("---@param options? %s"):format(options)
    names_[#names_ + 1] = "options"
  end
  for name in row.signature:match("%->%s*(.-)$"):gsub("%s*;.*$", ""):gmatch("[%w_]+") do
    lines[#lines + 1] = "---@return gb.Tensor " .. name
    results[#results + 1] = "gb.Tensor"
  end
  add_overloads(lines, list, options, is_method, table.concat(results, ", "))
  lines[#lines + 1] = ("function %s(%s) end"):format(path, table.concat(names_, ", "))
  return table.concat(lines, "\n")
end

-- The type of an argument whose kinds are joined by `|`; words stay as they are.
local function type_of(kinds)
  local list = {}
  for kind in kinds:gmatch("[^|]+") do
    kind = kind:match("^%s*(.-)%s*$")
    list[#list + 1] = kind:find('^"') and kind or types[kind] or "any"
  end
  return #list > 0 and table.concat(list, "|") or "any"
end

-- The arguments of an entry: a list of { name, mark ("", "?" or "..."), type, named }.
local function arguments_of(entry)
  local list, named = {}, false
  local text = entry.arguments:gsub("=%s*%b{}", "="):gsub('=%s*"[^"]*"', "=")
  for part, mark in (text .. ","):gmatch("([^,;]*)([,;])") do
    local name, optional, rest = part:match("^%s*([%w_]+)(%??%.?%.?%.?)(.*)$")
    if name then
      local kinds = rest:match("^%s*:%s*([^=]*)") or "tensor"
      local spread = optional == "..." or kinds:find("^sizes") or kinds:find("^ints") and not named
      if rest:find("=", 1, true) and optional == "" then optional = "?" end
      list[#list + 1] = { name = parameter_name(name), mark = spread and "..." or optional, type = type_of(kinds),
        named = named }
    end
    if mark == ";" then named = true end
  end
  return list
end

-- The lines of an entry's function.
local function entry_lines(entry, path)
  local lines, list, fields = { comment(entry.doc) }, {}, {}
  if entry.errors then lines[#lines + 1] = comment("Errors: " .. entry.errors .. ".") end
  local spread
  for _, a in ipairs(arguments_of(entry)) do
    if a.named then fields[#fields + 1] = ("%s%s: %s"):format(a.name, a.mark, a.type)
    elseif a.mark == "..." then spread = a
    else
      lines[#lines + 1] = ("---@param %s%s %s"):format(a.name, a.mark, a.type)
      list[#list + 1] = a.name
    end
  end
  local options = #fields > 0 and ("{ %s }"):format(table.concat(fields, ", "))
  if options and not spread then
    lines[#lines + 1] = "---@param options? " .. options
    list[#list + 1] = "options"
  end
  if spread then -- what follows it is an option: a parameter list ends with its `...`
    lines[#lines + 1] = ("---@param ... %s%s"):format(spread.type, options and "|" .. options or "")
    list[#list + 1] = "..."
  end
  for kind in (entry.result or ""):gmatch("%a+") do lines[#lines + 1] = "---@return " .. (types[kind] or "any") end
  lines[#lines + 1] = ("function %s(%s) end"):format(path, table.concat(list, ", "))
  return table.concat(lines, "\n")
end

-- where the name is not "gb." and the kind
local class_names = { tensor = "gb.Tensor", Module = "gb.Module", precision = "gb.precision" }
local function class_of(kind) return class_names[kind] or "gb." .. kind end

local operators = { add = "+", sub = "-", mul = "*", div = "/", idiv = "//", mod = "%", pow = "^" }

-- The class of a kind of object: its fields, and what it can be called or computed with.
local function class_lines(kind)
  local lines = { ("---@class %s%s"):format(class_of(kind), kind ~= "Module" and rawget(gb.nn, kind) and
    ": gb.Module" or "") }
  for _, name in ipairs(names) do
    local field = name:match("^" .. kind .. "%.([%w_]+)$")
    if field then lines[#lines + 1] = ("---@field %s%s %s %s"):format(field, field == "grad" and "?" or "",
      types[entries[name].result] or "any", entries[name].doc) end
  end
  if kind == "tensor" then
    local sorted = {}
    for operator in pairs(operators) do sorted[#sorted + 1] = operator end
    table.sort(sorted)
    for _, operator in ipairs(sorted) do
      lines[#lines + 1] = ("---@operator %s(gb.Tensor|number): gb.Tensor"):format(operator)
    end
    lines[#lines + 1] = "---@operator unm: gb.Tensor"
    lines[#lines + 1] = "---@operator len: integer"
  elseif kind == "Module" then
    lines[#lines + 1] = "---@overload fun(...): any"
  end
  lines[#lines + 1] = ("local %s = {}"):format(kind)
  return table.concat(lines, "\n")
end

local modules = { "gb.nn", "gb.nn.functional", "gb.nn.init", "gb.nn.utils", "gb.optim", "gb.optim.lr", "gb.amp",
  "gb.data", "gb.io", "gb.Logger", "gb.plot",
  "gb.cuda", "gb.random", "gb.dist", "gb.nn.parallel", "gb.test" }

-- The kinds of objects whose methods are described, sorted, tensors and modules first; layers are fields of gb.nn.
local function kinds()
  local seen, list = { tensor = true, Module = true }, {}
  for _, name in ipairs(names) do
    local kind = name:match("^([%w_]+):")
    if kind and not seen[kind] then
      seen[kind] = true
      list[#list + 1] = kind
    end
  end
  table.insert(list, 1, "Module")
  table.insert(list, 1, "tensor")
  return list
end

local function write_types()
  local dtypes = {}
  for i, dtype in ipairs(gb.test.dtypes()) do dtypes[i] = ("%q"):format(dtype.name) end
  local out = {
    "---@meta gibbous", "-- Made by cmake/reference.lua: types for the Lua language server.", "-- luacheck: ignore", "",
    "---@alias gb.DType " .. table.concat(dtypes, "|"),
    "---@class gb.precision", "---@field name string", "---@field parameters? gb.DType",
      "---@field autocast string|false",
    "---@field scaler boolean", "",
  }
  for _, kind in ipairs(kinds()) do out[#out + 1] = class_lines(kind) .. "\n" end
  out[#out + 1] = "---@class gibbous\nlocal gb = {}"
  for _, module in ipairs(modules) do out[#out + 1] = module .. " = {}" end
  out[#out + 1] = ""
  for _, row in ipairs(ops) do
    for i = 0, #row.aliases do
      local name = row.aliases[i] or row.name
      if row.where:find("G") then out[#out + 1] = op_lines(row, "gb." .. name) .. "\n" end
      if row.where:find("F") then out[#out + 1] = op_lines(row, "gb.nn.functional." .. name) .. "\n" end
      if row.where:find("M") then out[#out + 1] = op_lines(row, "tensor:" .. name, true) .. "\n" end
      if row.where:find("I") then out[#out + 1] = op_lines(row, "tensor:" .. name .. "_", true) .. "\n" end
    end
  end
  for _, name in ipairs(names) do
    local entry = entries[name]
    if name == "gb.nn.Module" then out[#out + 1] = "gb.nn.Module = Module\n"
    elseif entry.arguments then out[#out + 1] = entry_lines(entry, name) .. "\n"
    elseif name:find("^gb%.") then
      out[#out + 1] = ("%s\n---@type %s\n%s = nil\n"):format(comment(entry.doc), types[entry.result] or "any", name)
    end
  end
  out[#out + 1] = "return gb\n"
  return table.concat(out, "\n")
end

-- ====}

-- {==== the reference ====

local family_titles = {
  create = "Random numbers and copies", elementwise = "Element by element",
  gated = "Gated units, and others made of elementwise ops", reduce = "Reductions and softmax",
  matmul = "Matrix products",
  conv = "Convolution and pooling", norm = "Norms", loss = "Losses", distance = "Distances",
  attention = "Attention", index = "Indexing, sorting, joining", view = "Views",
  arrange = "Arranging tensors, and reductions in pairs", product = "Products over named dimensions",
  order = "Order statistics, counting and searching", scan = "Running results", vision = "Images, windows and channels",
}

-- Sections of what is no op: title, pattern of the names, a sentence.
local sections = {
  { "gb", "^gb%.[%w_]+$", "" },
  { "Tensors", "^tensor[.:]", "Fields and methods of tensors that are no ops. A trailing `_` means in place." },
  { "gb.nn", "^gb%.nn%.[%w_]+$", "Layers, activations and losses as modules; each takes its sizes, then a table of \z
    options." },
  { "gb.nn.functional", "^gb%.nn%.functional%.", "What recipes call F, beside the ops that say so." },
  { "Modules", "^Module:", "What every module and model can do." },
  { "Methods of some layers", "^%u%a+:", "" },
  { "gb.nn.init", "^gb%.nn%.init%.", "Each fills a tensor in place, without gradients, and returns it." },
  { "gb.nn.utils", "^gb%.nn%.utils%.", "" },
  { "gb.nn.parallel", "^gb%.nn%.parallel%.", "" },
  { "gb.linalg", "^gb%.linalg%.", "Linear algebra of matrices and batches of them, by LAPACK on the CPU." },
  { "gb.optim", "^gb%.optim%.[%w_]+$", "" },
  { "Optimizers", "^Optimizer:", "" },
  { "gb.optim.lr", "^gb%.optim%.lr%.", "Learning rate schedules: call schedule:step() after each step that happened." },
  { "Schedules", "^Schedule:", "" },
  { "gb.amp", "^gb%.amp%.", "" },
  { "GradScaler", "^GradScaler:", "" },
  { "gb.data", "^gb%.data%.", "" },
  { "DataLoader", "^DataLoader:", "" },
  { "gb.io", "^gb%.io%.", "" },
  { "gb.plot", "^gb%.plot%.", "Beside gb.plot itself, which draws curves." },
  { "gb.Logger", "^gb%.Logger%.", "The numbers of a run in files that other programs read while it goes on." },
  { "Loggers", "^Logger:", "" },
  { "gb.cuda", "^gb%.cuda%.", "" },
  { "gb.random", "^gb%.random%.", "Numbers of the random stream: the same seed gives the same ones, and checkpoints \z
    keep where it is." },
  { "gb.dist", "^gb%.dist%.", "The processes of a job; docs/distributed.md is the manual. gb.nn.parallel trains on \z
    them." },
  { "gb.test", "^gb%.test%.", "What our own tests are written with." },
  { "Other objects", "^%l+:", "" },
}

local function prose(text) return table.concat(lines_of(text:gsub("<", "&lt;"), 140), "\n") end

local function op_text(row)
  local e = gb.test.help_entry(row.name)
  local calls = {}
  for i, call in ipairs(e.calls) do calls[i] = "`" .. call .. "`" end
  local facts = ("%s. Autocast: %s. Derivative: %s. Shapes: %s."):format(table.concat(calls, ", "), e.autocast,
    e.derivative, e.shapes)
  return ("#### %s\n\n`%s`\n\n%s\n\n%s\n\n`%s`\n"):format(row.name, e.signature, prose(e.doc), prose(facts), e.example)
end

local function entry_text(name)
  local e = entries[name]
  local text = e.errors and ("%s Errors: %s."):format(e.doc, e.errors) or e.doc
  return ("#### %s\n\n`%s`\n\n%s\n%s"):format(name, e.signature, prose(text),
    e.example and ("\n`%s`\n"):format(e.example) or "")
end

local intro = [[
# Gibbous: the reference

Made by `./dev docs` from the table of ops (runtime/graph/ops.def) and the records of public functions
(bindings/reader.h). In a signature `x?` may be left out, `x|number` may be a Lua number, `xs...` is a list of tensors,
and what follows `;` is named, in a table after the positional arguments. `F` is `gb.nn.functional`. Dimensions and
positions count from 1, -1 is the last; integers in tensors are data and count from 0. The autocast class says what an
op runs in inside an autocast scope: `lower` in the scope's dtype, `float32` in float32, `widest` in the widest dtype
among its inputs, `keep` in what it is given, and `banned` is an error there. The derivative says how often an op can
be differentiated. An op that Ctrl-C or a limit stops gives no result; a tensor that it was changing in place is
changed in part.
]]

local function write_reference()
  local out, used = { intro }, {}
  local family
  out[#out + 1] = "## Ops\n"
  for _, row in ipairs(ops) do
    if row.family ~= family then
      family = row.family
      out[#out + 1] = ("### %s\n"):format(family_titles[family] or family)
    end
    out[#out + 1] = op_text(row)
  end
  for _, section in ipairs(sections) do
    local list = {}
    for _, name in ipairs(names) do
      if not used[name] and name:find(section[2]) and
        not (section[2]:find("%%u") and (name:find("^GradScaler") or name:find("^Optimizer")
        or name:find("^Schedule") or name:find("^DataLoader"))) then
        used[name] = true
        list[#list + 1] = entry_text(name)
      end
    end
    local sentence = section[3] ~= "" and "\n" .. section[3] .. "\n" or ""
    if #list > 0 then out[#out + 1] = ("## %s\n%s\n%s"):format(section[1], sentence, table.concat(list, "\n")) end
  end
  for _, name in ipairs(names) do
    if not used[name] then problems[#problems + 1] = name .. " has no section in the reference" end
  end
  return table.concat(out, "\n")
end

-- ====}

-- Write a file whole.
local function write(path, text)
  local out <close> = assert(io.open(path, "wb"))
  out:write(text)
end

if mode == "--types" then write(types_path, write_types())
else
  local path, text = "docs/reference.md", write_reference()
  if mode ~= "--check" then write(path, text)
  else
    local old = io.open(path, "rb")
    if not old or old:read("a") ~= text then problems[#problems + 1] = path .. " is stale: run ./dev docs" end
    if old then old:close() end
    return problems
  end
end
for _, problem in ipairs(problems) do io.stderr:write(problem, "\n") end
if #problems > 0 then os.exit(1) end
