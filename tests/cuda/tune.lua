-- tune.lua - tune.lua [FILE [BATCH TOKENS FEATURES VOCABULARY]...]: times the products of GPT-2's training steps with
-- gb.cuda.tune, and puts the choices for this device into FILE (cuda/tuned.def), which is built into the backend; those
-- for other devices stay. Without sizes: 124M and 350M at 16 sequences of 1,024. `./dev gpu tune` runs it.

local gb = require "gibbous"
local nn, F, amp = gb.nn, gb.nn.functional, gb.amp
gb.set_default_device("cuda")

-- One block, the table of tokens and the loss, bf16-mixed: all blocks multiply the same shapes.
local function step_of(batch, tokens, features, vocabulary)
  local precision = amp.precision("bf16-mixed")
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.tokens = nn.Embedding(vocabulary, features)
    self.block = nn.TransformerBlock(features, math.max(1, features // 64), { is_causal = true, norm_out = "autocast" })
    self.norm = nn.LayerNorm(features, { out = "autocast" })
  end
  local model = Net():to("cuda", precision)
  local ids = gb.arange(batch * tokens, { dtype = "int64" }):remainder(vocabulary):reshape(batch, tokens)
  return function()
    local loss = amp.autocast(precision, function()
      local x = model.norm(model.block(model.tokens(ids)))
      return F.linear_cross_entropy(x:flatten(1, 2), model.tokens.weight, ids:flatten())
    end)
    loss:backward()
  end
end

local out, sizes = arg[1] or "cuda/tuned.def", {}
for i = 2, #arg, 4 do
  sizes[#sizes + 1] = {}
  for j = 0, 3 do sizes[#sizes][j + 1] = assert(math.tointeger(arg[i + j]), "tune.lua: four numbers a step") end
end
if #sizes == 0 then sizes = { { 16, 1024, 768, 50304 }, { 16, 1024, 1024, 50304 } } end

local file, told = os.tmpname(), nil
for _, size in ipairs(sizes) do
  local step = step_of(table.unpack(size))
  step() -- what is made once
  told = gb.cuda.tune(function() step() end, { file = file })
  print(("%d products timed, %d faster by another algorithm: %.1f us became %.1f"):format(told.timed, told.improved,
    told.before * 1e6, told.after * 1e6))
end

-- The sections of a table as lists of lines, by their device lines, and these in order.
local function sections_of(lines)
  local sections, order, section = {}, {}, nil
  for _, line in ipairs(lines) do
    if line:match("^device ") then
      section = {}
      sections[line], order[#order + 1] = section, line
    elseif section then section[#section + 1] = line
    end
  end
  return sections, order
end

local old, header = {}, {}
for line in io.lines("cuda/tuned.def") do
  if not line:match('^"') then header[#header + 1] = line:gsub(" None has been measured yet%.", "") end
end
local handle = io.open(out, "r")
if handle then
  for line in handle:lines() do
    local text = line:match('^"(.*)\\n"$')
    if text then old[#old + 1] = text end
  end
  handle:close()
end
local new = {}
for line in io.lines(file) do new[#new + 1] = line end
os.remove(file)
local sections, order = sections_of(old)
for device, lines in pairs((sections_of(new))) do
  if not sections[device] then order[#order + 1] = device end
  sections[device] = lines
end
local text = assert(io.open(out, "w"))
text:write(table.concat(header, "\n"), "\n")
for _, device in ipairs(order) do
  text:write('"', device, '\\n"\n')
  for _, line in ipairs(sections[device]) do text:write('"', line, '\\n"\n') end
end
assert(text:close())
print(("%s has %d choices for this device"):format(out, told.choices))
