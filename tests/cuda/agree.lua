-- agree.lua - agree.lua [cases] [curves]: the CUDA device agrees with the CPU. Every golden case, forward and backward,
-- in every floating dtype; and the losses of the recipes, step by step, from the same seed. Part of `./dev gpu`; it
-- runs on the emulated device as well.
--
-- Cases: each device is within `growth` roundings of the dtype of the true value (tests/lua/test_golden_ops.lua), twice
-- that for gradients, so the two are within twice as many of each other. Curves: after a step the weights differ by
-- roundings of the sums, which training then multiplies; over so few steps a loss may drift by 2e-3 of itself in
-- float32, and by 3e-2 where operands have 8 bits of mantissa.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local cases = dofile("tests/lua/cases.lua")

local gibbous = arg[-1]
while gibbous:sub(1, 1) == "-" do gibbous = arg[-2] end
local wanted = {}
for _, name in ipairs(arg) do wanted[name] = true end
local function asked(name) return next(wanted) == nil or wanted[name] end

local before = gb.get_default_device()

-- A case on a device: results and gradients, brought to the CPU.
local function run(case, dtype, device)
  gb.set_default_device(device)
  gb.manual_seed(1)
  local inputs = cases.inputs(case, dtype)
  local outputs = cases.run(case, inputs)
  local grads, results = cases.gradients(case, inputs, outputs), {}
  for i, y in ipairs(outputs) do results["output " .. i] = y:detach():to("cpu") end
  for i, g in pairs(grads) do results["gradient " .. i] = g:detach():to("cpu") end
  return results
end

if asked("cases") then
  for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
    describe(dtype, function()
      for _, case in ipairs(cases.list) do
        it(case.name, function()
          local a, b = run(case, dtype, "cpu"), run(case, dtype, "cuda")
          gb.set_default_device("cpu")
          for name, x in pairs(a) do
            local kind = x:is_floating_point() and x.dtype or "float64"
            local ok, why = cases.within(b[name], x, kind, 4 * math.max(case.growth, 4))
            if not ok then error(("%s: %s"):format(name, why)) end
          end
        end)
      end
    end)
  end
  gb.set_default_device(before)
end

-- {==== recipes ====

local folder = os.tmpname()
os.remove(folder)
assert(os.execute(("mkdir '%s'"):format(folder)))

local function put(name, text)
  local file = assert(io.open(folder .. "/" .. name, "wb"))
  file:write(text)
  file:close()
end

-- Pictures that can be told apart: class c is bright in column 2 c + 4, over noise that a small generator draws.
local function write_digits(name, count)
  local state, pixels, labels = 1, {}, {}
  for i = 1, count do
    local class, rows = i % 10, {}
    for r = 1, 28 do
      local row = {}
      for c = 1, 28 do
        state = (state * 1103515245 + 12345) % 2147483648
        row[c] = string.char((c == 2 * class + 4 and 180 or 0) + state // 65536 % 64)
      end
      rows[r] = table.concat(row)
    end
    pixels[i], labels[i] = table.concat(rows), string.char(class)
  end
  put(name .. "-images-idx3-ubyte", string.pack(">BBBBI4I4I4", 0, 0, 8, 3, count, 28, 28) .. table.concat(pixels))
  put(name .. "-labels-idx1-ubyte", string.pack(">BBBBI4", 0, 0, 8, 1, count) .. table.concat(labels))
end

-- The losses of a recipe's steps on a device.
local function curve(recipe, options, device)
  local list = {}
  local pipe = assert(io.popen(("'%s' tests/cuda/curve.lua recipes/%s %s --device %s --out %s/weights.safetensors \z
    2>&1 >/dev/null"):format(gibbous, recipe, options,
    device, folder)))
  for line in pipe:lines() do list[#list + 1] = tonumber(line) or error(line) end
  pipe:close()
  return list
end

if asked("curves") then
  write_digits("train", 640)
  write_digits("t10k", 64)
  local text = {}
  for path in ("README.md recipes/char_gpt.lua recipes/gpt2.lua"):gmatch("%S+") do
    for line in io.lines(path) do text[#text + 1] = line end
  end
  put("text", table.concat(text, "\n"))
  local ids = {}
  for i = 1, 4000 do ids[i] = string.pack("<I2", (i * i // 7) % 61) end
  put("tokens", table.concat(ids))
  local recipes = {
    ["char_gpt.lua"] = ("--data %s/text --steps 12 --layers 2 --batch 4 --eval_batches 1 --sample 0"):format(folder),
    ["mnist_cnn.lua"] = ("--data %s --epochs 1"):format(folder),
    ["gpt2.lua"] =
      ("--data %s/tokens --model tiny --vocabulary 61 --block 32 --batch 4 --steps 12 --valid_batches 1"):format(
        folder),
  }
  for recipe, options in pairs(recipes) do
    for precision, tolerance in pairs { ["32-true"] = 2e-3, ["bf16-mixed"] = 3e-2 } do
      describe(recipe .. " " .. precision, function()
        it("has the same losses on both devices", function()
          local a = curve(recipe, options .. " --precision " .. precision, "cpu")
          local b = curve(recipe, options .. " --precision " .. precision, "cuda")
          expect(#a > 5):to_be(true)
          expect(#b):to_be(#a)
          for i, loss in ipairs(a) do expect(b[i]):to_be_near(loss, tolerance) end
        end)
      end)
    end
  end
end

os.execute(("rm -r '%s'"):format(folder))

-- ====}

gb.test.finish()
