-- record.lua - gibbous tests/peers/record.lua RECIPE OUT STEPS [options]: runs a recipe as it is until it has made so
-- many losses (0: to its end), and writes what another library needs to do the same to OUT, a safetensors file:
--
--   loss                 the losses of training, in their order
--   models.N.NAME        the state of the N-th model as it was before the first batch, from 1
--   train.B.V            value V of the batch that training took as its B-th
--   test.B.V             the same of the last pass without gradients; only where the recipe ran to its end
--   epoch                batches in an epoch of the loader that trains
--
-- A recipe is not told: the three functions that see all of this are replaced before it is read.

local gb = require "gibbous"
local path, out, wanted = table.remove(arg, 1), table.remove(arg, 1), tonumber(table.remove(arg, 1))
if not wanted then error("record.lua: RECIPE OUT STEPS [options]", 0) end
rawset(arg, 0, path) -- what --help of the recipe shows

local tensors, losses, models, test = {}, {}, {}, {}
local trained, finished = 0, {}

-- Keep the values of a batch that are tensors.
local function keep(list, part, number, batch)
  for v = 1, batch.n do
    if gb.is_tensor(batch[v]) then list[("%s.%d.%d"):format(part, number, v)] = batch[v]:cpu():clone() end
  end
end

-- The models that were moved to a device and are no part of another one.
local function keep_models()
  local inner, number = {}, 0
  for _, model in ipairs(models) do
    for _, module in ipairs(gb.nn.Module.modules(model)) do inner[module] = inner[module] or module ~= model end
  end
  for _, model in ipairs(models) do
    if not inner[model] then
      number = number + 1
      for name, t in pairs(gb.nn.Module.state_dict(model)) do
        tensors[("models.%d.%s"):format(number, name)] = t:cpu():clone()
      end
    end
  end
end

local to = gb.nn.Module.to
function gb.nn.Module.to(model, ...)
  models[#models + 1] = model
  return to(model, ...)
end

local Loader = getmetatable(gb.data.DataLoader(gb.data.TensorDataset(gb.zeros(1))))
local iter = Loader.iter
function Loader:iter(...)
  local next_batch, count, tests = iter(self, ...), 0, not gb.is_grad_enabled()
  if tests then test = {} end
  return function()
    local batch = table.pack(next_batch())
    if batch[1] == nil then return nil end
    count = count + 1
    if tests then
      if wanted == 0 then keep(test, "test", count, batch) end
    else
      if trained == 0 then
        keep_models()
        tensors.epoch = gb.tensor({ #self }, { dtype = "int64" })
      end
      trained = trained + 1
      keep(tensors, "train", trained, batch)
    end
    return table.unpack(batch, 1, batch.n)
  end
end

-- The losses are what is given to the scaler, which a loop has in every precision.
local GradScaler = gb.amp.GradScaler
function gb.amp.GradScaler(...)
  local scaler = GradScaler(...)
  return setmetatable({
    scale = function(_, loss, ...)
      for _, one in ipairs(gb.is_tensor(loss) and { loss } or loss) do
        if #losses == wanted and wanted > 0 then error(finished, 0) end
        losses[#losses + 1] = one:item()
      end
      return scaler:scale(loss, ...)
    end,
  }, { __index = function(_, name)
    return function(_, ...) return scaler[name](scaler, ...) end
  end })
end

-- A bar would ask the scaler for its text.
function gb.progress() return { update = function() end, close = function(_, text) print(text) end } end

local ok, why = xpcall(dofile, function(e) return e == finished and e or debug.traceback(tostring(e), 2) end, path)
if not ok and why ~= finished then error(why, 0) end
tensors.loss = gb.tensor(losses, { dtype = "float64" })
for name, t in pairs(test) do tensors[name] = t end
gb.save(out, tensors)
