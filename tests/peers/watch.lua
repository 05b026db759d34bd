-- watch.lua - runs a recipe as it is and writes down what another library needs to train the same model beside it.
--
--   gibbous tests/peers/watch.lua FOLDER STEPS recipes/NAME.lua [options of the recipe]
--
-- FOLDER, which exists, gets
--   start.safetensors  all parts of the run before the first step, as a checkpoint has them: model/conv1.weight, ...
--   order.json         for each epoch the positions (from 0) of the samples that the training loader gives, in order
--   draws.safetensors  what gb.randn gave after the start, by the number of the call
--   steps.jsonl        a line per step: the values that the bar shows, such as loss, lr and scale
-- and what the recipe prints goes to the output. The run ends after STEPS steps (0: when the recipe does).
--
-- It takes the place of four functions of the library: a recipe that is told to resume hands its parts to
-- gb.io.load_checkpoint, makes its loaders by gb.data.DataLoader, and shows each step by gb.progress.

local gb = require "gibbous"
local folder, steps, recipe = arg[1], tonumber(arg[2]), arg[3]
local ENOUGH = {} -- the error that ends the run

local function path(name) return folder .. "/" .. name end
local lines = assert(io.open(path "steps.jsonl", "w"))

-- Epochs of which the order is written, and draws that are kept.
local EPOCHS, DRAWS = tonumber(os.getenv "GIBBOUS_PEER_EPOCHS" or "1"), 2000

-- {==== the order of the samples ====

local DataLoader, orders = gb.data.DataLoader, nil

-- The first shuffled loader is the training's: the order of its samples is that of a loader of their numbers.
local function write_order(dataset, options)
  local numbers = gb.data.TensorDataset(gb.arange(#dataset, { dtype = "int64" }))
  local loader = DataLoader(numbers, { batch_size = options.batch_size, shuffle = true, drop_last = options.drop_last,
    seed = options.seed })
  orders = {}
  for epoch = 1, EPOCHS do
    local batches = {}
    for positions in loader:iter("cpu") do batches[#batches + 1] = positions:tolist() end
    orders[epoch] = batches
  end
  local file <close> = assert(io.open(path "order.json", "w"))
  file:write(gb.io.json_encode(orders))
end

function gb.data.DataLoader(dataset, options)
  if not orders and options and options.shuffle then write_order(dataset, options) end
  return DataLoader(dataset, options)
end

-- ====}

-- {==== the start ====

local randn, started, draws, count = gb.randn, false, {}, 0

-- The parts of the run go to a file instead of coming from one.
function gb.io.load_checkpoint(_, parts)
  gb.io.save_checkpoint(path "start.safetensors", parts)
  started = true
  return { epoch = 0, step = 0, seed = 0 }
end

function gb.randn(...)
  local drawn = randn(...)
  if started and count < DRAWS then
    count = count + 1
    draws[tostring(count)] = drawn:cpu()
  end
  return drawn
end

-- ====}

-- {==== the steps ====

local done = 0

-- One step: its numbers as a line.
local function write_step(values)
  local row = {}
  for name, value in pairs(values) do
    if gb.is_tensor(value) then row[name] = value:item()
    elseif type(value) == "number" then row[name] = value
    elseif name == "scale" then row[name] = value:get_scale() end
    if row[name] ~= row[name] or row[name] == math.huge or row[name] == -math.huge then
      row[name] = tostring(row[name])
    end
  end
  lines:write(gb.io.json_encode(row), "\n")
  lines:flush()
  done = done + 1
  if done == steps then error(ENOUGH, 0) end
end

local Bar = {}
Bar.__index = Bar
function Bar.update(_, _, values)
  if values and (values.loss or values.discriminator) and values.scale then write_step(values) end
end
function Bar.close(self, text) print(self.title .. "  " .. (text or "")) end
function gb.progress(_, title) return setmetatable({ title = title or "" }, Bar) end

-- ====}

local options = { [0] = recipe, table.unpack(arg, 4) }
for _, word in ipairs { "--resume", "the start" } do options[#options + 1] = word end
arg = options
local ok, why = pcall(dofile, recipe)
if not ok and why ~= ENOUGH then error(why, 0) end
lines:close()
if count > 0 then gb.save(path "draws.safetensors", draws) end
