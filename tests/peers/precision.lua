-- precision.lua - what gb.amp.audit says of recipes, run as they are.
--
--   GIBBOUS_DATA=FOLDER gibbous tests/peers/precision.lua [RECIPE ...]
--
-- For each recipe (all of them without names), in 16-mixed and bf16-mixed: the share of the operations of products
-- that run in 16 bits, the casts of a step and the bytes they read and wrote; and in 16-mixed the static scale that the
-- audit of the AUDITED-th step advises, the dynamic scale after STEPS steps, how many of them were skipped, and the
-- first.
--
-- A recipe runs in a coroutine that pauses before each batch, so that the audit sees one step and nothing else. Each
-- pair of recipe and precision has a process of its own: this script calls itself with --one.

local gb = require "gibbous"
local AUDITED, STEPS = 3, 40

-- By recipe: its data, and what makes it small enough for some minutes.
local recipes = {
  { "mnist_cnn", "mnist" }, { "tabular", "housing/housing.csv" }, { "lstm_sentiment", "sentences" },
  { "chorales", "chorales" }, { "bert", "sentences", "--steps 0 --batch 16" },
  { "char_gpt", "tinyshakespeare/input.txt", "--sample 0" },
  { "gpt2", "tinyshakespeare/input.txt", "--dtype uint8 --model tiny --vocabulary 256 --block 64" },
  { "cifar_resnet", "cifar10", "--batch 32" }, { "cifar_efficientnet", "cifar10", "--batch 16" },
  { "cifar_vit", "cifar10", "--batch 32" },
  { "unet", "membrane" }, { "dcgan", "mnist" },
}

-- {==== one recipe ====

-- The share of the operations of products whose operands are 16 bits, in percent.
local function share_in_16_bits(report)
  local short, total = 0, 0
  for _, row in ipairs(report.rows) do
    local operations = row.calls * (row.operations or 0)
    total = total + operations
    if row.products and row.products.dtype:find "float16" then short = short + operations end
  end
  return 100 * short / total
end

-- Run a recipe for STEPS steps, one of them under the audit, and print what was found as key = value.
local function one(path, precision)
  rawset(arg, 0, path)
  local models, scalers, trained = {}, {}, false
  local to, iter = gb.nn.Module.to, getmetatable(gb.data.DataLoader(gb.data.TensorDataset(gb.zeros(1)))).iter
  function gb.nn.Module.to(model, ...)
    models[#models + 1] = model
    return to(model, ...)
  end
  getmetatable(gb.data.DataLoader(gb.data.TensorDataset(gb.zeros(1)))).iter = function(...)
    local next_batch, trains = iter(...), gb.is_grad_enabled()
    return function()
      if trains then coroutine.yield(true) end
      return next_batch()
    end
  end
  local GradScaler = gb.amp.GradScaler
  function gb.amp.GradScaler(...)
    scalers[#scalers + 1] = GradScaler(...)
    return scalers[#scalers]
  end
  function gb.progress() return { update = function() end, close = function() end } end
  local recipe = coroutine.create(dofile)
  local function step(...)
    local ok, paused = coroutine.resume(recipe, ...)
    if not ok then error(debug.traceback(recipe, tostring(paused)), 0) end
    trained = paused
  end
  step(path)
  local first, report
  for number = 1, STEPS do
    if not trained then break end
    if number >= AUDITED and not (report and report.operations > 0) then -- at the end of an epoch a pause may be empty
      report = gb.amp.audit(models[#models], function() step() end, { print = false })
    else step() end
    local scaler = scalers[#scalers]
    if not first and scaler:is_enabled() and scaler:stats().skipped > 0 then first = number end
  end
  local stats = scalers[#scalers]:stats()
  print(("share = %.1f"):format(share_in_16_bits(report)))
  print(("casts = %d"):format(report.casts))
  print(("bytes = %.1f"):format(report.cast_bytes / 1e6))
  print(("kept = %d"):format(report.reused))
  if precision == "16-mixed" then
    print(("advised = %s"):format(report.advice and report.advice.scale or "none"))
    print(("settled = %s"):format(scalers[#scalers]:get_scale()))
    print(("skipped = %d of %d"):format(stats.skipped, stats.steps + stats.skipped))
    print(("first = %s"):format(first or "none"))
  end
  os.exit(true)
end

-- ====}

-- {==== all of them ====

-- A power of two as such.
local function power(text)
  local scale = tonumber(text)
  if not scale then return text end
  local exponent = math.log(scale, 2)
  return exponent == math.floor(exponent) and ("2^%d"):format(exponent) or text
end

local function ask(row, precision)
  local out = os.tmpname()
  local command = ("'%s' --threads 2 tests/peers/precision.lua --one recipes/%s.lua %s --data '%s/%s' --device cpu \z
    --precision %s --out '%s' %s 2>&1"):format(gb.test.program(), row[1], precision, os.getenv("GIBBOUS_DATA"), row[2],
    precision, out, row[3] or "")
  local pipe = assert(io.popen(command))
  local output, found = pipe:read("a"), {}
  local ok = pipe:close()
  os.remove(out)
  if not ok then error(command .. "\n" .. output, 0) end
  for name, value in output:gmatch("(%w+) = ([^\n]+)") do found[name] = value end
  return found
end

local function page(names)
  print(("| recipe | precision | products in 16 bits | casts a step | kept copies read | advised scale | \z
    scale after %d steps | skipped | first at step |"):format(STEPS))
  print("|---|---|---|---|---|---|---|---|---|")
  for _, row in ipairs(recipes) do
    if not next(names) or names[row[1]] then
      for _, precision in ipairs { "16-mixed", "bf16-mixed" } do
        local f = ask(row, precision)
        print(("| %s %s | %s | %s %% | %s, %s MB | %s | %s | %s | %s | %s |"):format(row[1], row[3] or "", precision,
          f.share, f.casts, f.bytes, f.kept, power(f.advised or ""), power(f.settled or ""), f.skipped or "",
          f.first or ""))
        io.stdout:flush()
      end
    end
  end
end

-- ====}

if arg[1] == "--one" then
  table.remove(arg, 1)
  local path, precision = table.remove(arg, 1), table.remove(arg, 1)
  one(path, precision)
end
if not os.getenv("GIBBOUS_DATA") then error("precision.lua: GIBBOUS_DATA names the folder of the data", 0) end
local names = {}
for _, name in ipairs(arg) do names[name] = true end
page(names)
