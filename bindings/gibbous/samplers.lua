-- samplers.lua - orders in which a DataLoader visits samples. A sampler is a description: what it gives is a function
-- of (epoch, seed), both the loader's, so that a loader's state is all that a checkpoint needs.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, math_type, move, is_tensor = string.format, math.type, table.move, gb.is_tensor
local data = gb.data

-- What is private of a sampler: count, order (a function of epoch and seed: a list of positions, or of lists of them),
-- name, batches (does it give lists of lists?).
local Sampler = native.class_of_data("Sampler", "sampler", function(mine)
  return format("%s (%d %s)", mine.name, mine.count, mine.batches and "batches" or "samples")
end)

local function make(name, count, order, batches)
  return own(setmetatable({}, Sampler), "sampler", { name = name, count = count, order = order, batches = batches })
end

Sampler.order = define("Sampler:order(epoch: count, seed: int) -> list: What an epoch (from 0) of a loader with this \z
  seed visits: positions from 1, or of a batch sampler a list of them for each batch. A table with such a method is a \z
  sampler too. Example: local order = gb.data.RandomSampler(10):order(0, 1)", "strict",
  function(self, epoch, seed) return private(self, "sampler").order(epoch, seed) end)

-- The numbers of a list or a tensor of one dimension as a list.
local function numbers_of(list, who, name)
  if is_tensor(list) then
    if list:dim() ~= 1 then fail(format("%s: '%s' has %d dimensions, it needs 1", who, name, list:dim())) end
    list = list:tolist()
  elseif type(list) ~= "table" then
    fail(format("%s: '%s' is a list of numbers or a tensor of one dimension, not a %s", who, name,
      native.type_name(list)))
  end
  return list
end

data.RandomSampler = define("gb.data.RandomSampler(count: size; replacement: bool = false, samples?: size) -> any: \z
  An order of count samples, a new one in each epoch; with replacement samples (count unless given) of them are drawn \z
  one by one. Example: local sampler = gb.data.RandomSampler(100, { replacement = true, samples = 10 })", "strict",
  function(count, options)
    local samples = options.samples or count
    if not options.replacement then
      if samples > count then
        fail(format("RandomSampler: %d different samples cannot be drawn of %d; say replacement = true",
          samples, count))
      end
      return make("RandomSampler", samples, function(epoch, seed)
        return move(native.shuffled(count, seed, epoch), 1, samples, 1, {})
      end)
    end
    local weights = {}
    for i = 1, count do weights[i] = 1 end
    return make("RandomSampler", samples, function(epoch, seed)
      return native.weighted(weights, samples, true, seed, epoch)
    end)
  end)

data.SubsetRandomSampler = define("gb.data.SubsetRandomSampler(positions: list) -> any: The samples of these \z
  positions in a random order, a new one in each epoch. Example: local sampler = gb.data.SubsetRandomSampler({ 1, 3, \z
  5 })", "strict",
  function(positions)
    if #positions == 0 then fail("SubsetRandomSampler takes a list of one position or more") end
    return make("SubsetRandomSampler", #positions, function(epoch, seed)
      local order = native.shuffled(#positions, seed, epoch)
      for i = 1, #order do order[i] = positions[order[i]] end
      return order
    end)
  end)

data.WeightedRandomSampler = define("gb.data.WeightedRandomSampler(weights: list|tensor, samples?: size; replacement: \z
  bool = true) -> any: Draws samples (as many as there are weights unless given) with probabilities that are their \z
  weights over the sum of all. Without replacement each is drawn once at most. Errors: a weight that is negative or \z
  not finite, weights that are all 0, fewer above 0 than are drawn without replacement. Example: local sampler = \z
  gb.data.WeightedRandomSampler({ 0.1, 0.1, 0.8 }, 100)", "strict",
  function(weights, samples, options)
    weights = numbers_of(weights, "WeightedRandomSampler", "weights")
    local copy, above, sum = {}, 0, 0
    for i = 1, #weights do
      local weight = weights[i]
      if type(weight) ~= "number" or not (weight >= 0 and weight < math.huge) then
        fail(format("WeightedRandomSampler: weight %d is %s; weights are finite numbers from 0 on", i,
          tostring(weight)))
      end
      copy[i], sum = weight, sum + weight
      if weight > 0 then above = above + 1 end
    end
    if above == 0 then fail("WeightedRandomSampler: no weight is above 0") end
    if sum == math.huge then fail("WeightedRandomSampler: the sum of the weights is not finite; divide them") end
    samples = samples or #copy
    if not options.replacement and samples > above then
      fail(format("WeightedRandomSampler: %d different samples cannot be drawn of %d with a weight above 0", samples,
        above))
    end
    return make("WeightedRandomSampler", samples, function(epoch, seed)
      return native.weighted(copy, samples, options.replacement, seed, epoch)
    end)
  end)

data.BucketBatchSampler = define("gb.data.BucketBatchSampler(lengths: list|tensor, batch_size: size; shuffle: bool = \z
  true, drop_last: bool = false, window: size = 100) -> any: Batches of samples of about the same length, so that \z
  little is filled by pad_collate; for the option batch_sampler of a DataLoader. Samples are put in a random order, \z
  each window of so many batches is sorted by length, and the full batches change places. Without shuffle all are \z
  sorted by length. Errors: a length that is no whole number from 0. Example: local sampler = \z
  gb.data.BucketBatchSampler({ 3, 9, 4, 8 }, 2)", "strict",
  function(lengths, batch_size, options)
    lengths = numbers_of(lengths, "BucketBatchSampler", "lengths")
    local copy = {}
    for i = 1, #lengths do
      local length = lengths[i]
      if math_type(length) ~= "integer" or length < 0 then
        fail(format("BucketBatchSampler: length %d is %s; lengths are whole numbers from 0 on", i, tostring(length)))
      end
      copy[i] = length
    end
    local full, left = #copy // batch_size, #copy % batch_size
    local count = (left == 0 or options.drop_last) and full or full + 1
    if count == 0 then
      fail(format("BucketBatchSampler: %d lengths make no full batch of %d", #copy, batch_size))
    end
    return make("BucketBatchSampler", count, function(epoch, seed)
      local order, batches = native.bucketed(copy, batch_size, options.window, options.shuffle, seed, epoch), {}
      for b = 1, count do
        batches[b] = move(order, (b - 1) * batch_size + 1, math.min(b * batch_size, #order), 1, {})
      end
      return batches
    end, true)
  end)

-- {==== What a DataLoader asks ====

-- The sampler that an option is: one of ours, or a table with order(epoch, seed). A list of positions or batches
-- becomes one that always gives a copy of it.
function native.check_sampler(sampler, option, wants_batches)
  local mine = private(sampler, "sampler")
  if mine and (mine.batches or false) ~= wants_batches then
    fail(format("DataLoader: '%s' is a %s; give it as %s", option, mine.name,
      wants_batches and "sampler, with a batch_size" or "batch_sampler"))
  end
  if mine then return sampler end
  local list = type(sampler) == "table" and native.copy(sampler, wants_batches)
  if list and list[1] ~= nil then return make("list", #list, function() return list end, wants_batches) end
  if list and type(sampler.order) == "function" then return sampler end
  fail(format("DataLoader: '%s' is a sampler of gb.data, a table with a method order(epoch, seed), or a list of %s, \z
    not a %s", option, wants_batches and "lists of positions" or "positions", list and "table without any" or
    native.type_name(sampler)))
end

-- What a sampler gives for an epoch: a list of ours.
function native.sampler_order(sampler, epoch, seed)
  local mine = private(sampler, "sampler")
  if mine then return mine.order(epoch, seed) end
  local order = sampler:order(epoch, seed)
  if type(order) ~= "table" then
    fail(format("DataLoader: order(%d, seed) of the sampler returned a %s, no list", epoch,
      native.type_name(order)))
  end
  return native.copy(order, true)
end

-- ====}
