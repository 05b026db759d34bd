-- test_gpt2.lua - recipes/gpt2.lua as users run it: its smallest model learns from files written here, stops, resumes,
-- accumulates, recomputes.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local gibbous = gb.test.program()
local folder = os.tmpname()
os.remove(folder)
assert(os.execute(("mkdir '%s'"):format(folder)))

local function put(name, text)
  local path = folder .. "/" .. name
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end

-- 4,000 ids below 16, each the sum of the two before it: predictable from the context, not from the last id alone.
local ids = { 1, 1 }
for i = 3, 4000 do ids[i] = (ids[i - 1] + ids[i - 2]) % 16 end
local function packed(format)
  local words = {}
  for i, id in ipairs(ids) do words[i] = string.pack(format, id) end
  return table.concat(words)
end
local plain = put("plain.bin", packed("<I2"))

-- Run the recipe: whether it ended well, and what it printed.
local function run(options)
  local defaults = "--model tiny --device cpu --precision 32-true --vocabulary 16 --batch 8 --block 16 --steps 8 \z
    --valid_batches 2 --lr 1e-2 --min_lr 1e-3 --warmup 2"
  local pipe = assert(io.popen(("'%s' --threads 1 recipes/gpt2.lua %s %s 2>&1"):format(gibbous, defaults, options)))
  local output = pipe:read("a")
  return pipe:close() == true, output
end

-- The weights that a run gives, by name.
local function weights(options)
  local out = folder .. "/weights.safetensors"
  local ok, output = run(options .. " --out " .. out)
  if not ok then error(output) end
  local tensors = gb.load(out)
  os.remove(out)
  return tensors
end

local function expect_same(a, b, compare)
  for name, t in pairs(a) do compare(expect(t), b[name]) end
end
local function bits(e, t) e:to_equal_bits(t) end

-- What a training of hours ends in has to be known to fail before it begins.
describe("every recipe", function()
  for _, recipe in ipairs { "char_gpt", "gpt2", "mnist_cnn" } do
    for _, option in ipairs { "--out", "--checkpoint" } do
      it(("%s says at once that %s cannot be written"):format(recipe, option), function()
        local pipe =
          assert(io.popen(("'%s' recipes/%s.lua --data '%s' %s '%s/missing/file' 2>&1"):format(gibbous, recipe, plain,
          option, folder)))
        local output = pipe:read("a")
        expect(pipe:close() == true):to_be(false)
        expect(output:find(("%s: cannot write '%s/missing/file"):format(option, folder), 1, true) ~= nil):to_be(true)
      end)
    end
  end
end)

describe("the numbers of every recipe", function()
  local function output_of(recipe, options)
    local pipe = assert(io.popen(("'%s' recipes/%s.lua --data '%s' %s 2>&1"):format(gibbous, recipe, plain, options)))
    return pipe:read("a"), pipe:close() == true
  end
  for recipe, options in pairs {
    char_gpt = { "layers", "checkpoint_every", "batch", "block", "heads", "width", "steps", "eval_batches" },
    gpt2 = { "checkpoint_every", "batch", "steps", "accumulate", "vocabulary", "valid_every", "valid_batches" },
    mnist_cnn = { "batch", "epochs" },
  } do
    it(recipe .. " are refused below their least, by name", function()
      for _, option in ipairs(options) do
        for _, value in ipairs { 0, -1 } do
          local output, ok = output_of(recipe, ("--%s=%d"):format(option, value))
          expect(ok):to_be(false)
          expect(output):to_be(("%s: --%s is at least 1, got %d\n"):format(gibbous, option, value))
        end
      end
    end)
    it(recipe .. " that mean something else say so in --help", function()
      local help = output_of(recipe, "--help")
      expect(help:find("--clip[^\n]*%(0: any%)") ~= nil):to_be(true)
      expect(help:find('--out[^\n]*%("": nowhere%)') ~= nil):to_be(true)
    end)
  end
end)

describe("recipes/gpt2.lua", function()
  it("learns", function()
    local out = folder .. "/learned.safetensors"
    local ok, output = run(("--data %s --steps 80 --precision bf16-mixed --valid_every 40 --out %s"):format(plain, out))
    expect(ok):to_be(true)
    local before, after = output:match("step 40: validation loss ([%d.]+)"),
      output:match("train  validation loss ([%d.]+)")
    expect(tonumber(before) < math.log(16)):to_be(true) -- better than guessing
    expect(tonumber(after) < 0.5):to_be(true)
    local shape = gb.load(out)["tokens.weight"].shape
    expect(shape[1]):to_be(16)
  end)
  local once = weights("--data " .. plain)
  it("reads every kind of file alike", function()
    local headed = put("headed.bin", string.pack("<i4i4i4", 20240520, 1, #ids) .. ("\0"):rep(1012) .. packed("<I2"))
    expect_same(once, weights("--data " .. headed), bits)
    expect_same(once, weights("--dtype int32 --data " .. put("wide.bin", packed("<i4"))), bits)
    expect_same(once, weights("--dtype uint8 --data " .. put("bytes.bin", packed("<I1"))), bits)
  end)
  it("recomputes to the same bits", function() expect_same(once, weights("--recompute --data " .. plain), bits) end)
  it("takes --clip 0 for no clipping, and --out '' for no file", function()
    expect_same(weights("--clip 0 --data " .. plain), weights("--clip 1e30 --data " .. plain), bits)
    local ok, output = run(("--data %s --out ''"):format(plain))
    expect(ok):to_be(true)
    expect(output:find("weights:", 1, true)):to_be(nil)
  end)
  it("accumulates to the same step", function()
    -- Adam divides by the root of the second moment, so that a rounding of a gradient near 0 can move a weight by up to
    -- the rate; the mean stays.
    expect_same(once, weights("--batch 4 --accumulate 2 --data " .. plain), function(e, t)
      expect((e.value - t):abs():mean():item() < 1e-4):to_be(true)
    end)
  end)
  it("resumes to the same bits", function()
    local checkpoint = folder .. "/checkpoint.safetensors"
    local ok = run(("--data %s --accumulate 2 --checkpoint %s --checkpoint_every 100 --stop_at 3"):format(plain,
      checkpoint))
    expect(ok):to_be(true)
    local whole = weights("--accumulate 2 --data " .. plain)
    expect_same(whole, weights(("--accumulate 2 --data %s --resume %s"):format(plain, checkpoint)), bits)
    local note = "the random state of " .. checkpoint .. " goes on, and --seed 5 is not used"
    for _, seed in ipairs { 1, 5 } do
      local out = folder .. "/resumed.safetensors"
      local _, output = run(("--data %s --accumulate 2 --resume %s --seed %d --out %s"):format(plain, checkpoint, seed,
        out))
      expect(output:find(note, 1, true) ~= nil):to_be(seed == 5)
      expect_same(whole, gb.load(out), bits)
    end
  end)
  it("says what is wrong", function()
    for options, word in pairs {
      [""] = "--data", ["--data " .. plain .. " --model 125M"] = "125M", ["--data " .. plain .. " --block 65"] = "64",
        ["--data " .. plain .. " --accumulate 0"] = "accumulate",
      ["--data " .. plain .. " --vocabulary 15"] = "15", ["--data " .. plain .. " --dtype int8"] = "int8",
    } do
      local ok, output = run(options)
      expect(ok):to_be(false)
      expect(output:find(word, 1, true) ~= nil):to_be(true)
    end
  end)
end)

os.execute(("rm -r '%s'"):format(folder))
gb.test.finish()
