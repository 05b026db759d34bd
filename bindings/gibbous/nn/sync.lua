-- nn/sync.lua - SyncBatchNorm: a batch norm whose statistics are those of what all processes run at once.
--
-- Each process measures its part in float32, or in float64 where that is x's dtype; counts, means and sums of squares
-- are put together two by two in the order of the ranks (Chan, Golub, LeVeque 1979), alike on all. Backward adds two
-- sums per channel over the processes.

local gb, native = ...
local fail, layer, refuse = native.fail, native.layer, native.refuse_more
local format = string.format
local all_gather, all_reduce, world_size = gb.dist.all_gather, gb.dist.all_reduce, gb.dist.world_size
local cat, tensor, no_grad = gb.cat, gb.tensor, gb.no_grad

-- [n, c, ...] as [c, elements], and back.
local function by_channel(x)
  return x:transpose(1, 2):reshape(x.shape[2], -1)
end

local function by_sample(rows, like)
  local shape = like.shape
  shape[1], shape[2] = shape[2], shape[1]
  return rows:reshape(shape):transpose(1, 2)
end

-- Count, means and sums of squared deviations of two parts together.
local function join(a, b)
  local n = a.n + b.n
  if n == 0 then return a end
  local delta = b.mean - a.mean
  return { n = n, mean = a.mean + delta * (b.n / n), squares = a.squares + b.squares + delta * delta * (a.n * b.n / n) }
end

-- Those of all processes, or of a group.
local function measure(rows, group)
  local c, n = rows.shape[1], rows.shape[2]
  local like = { dtype = rows.dtype, device = rows.device }
  local mean = n > 0 and rows:mean(2) or gb.zeros(c, like)
  local squares = (rows - mean:unsqueeze(2)):square():sum(2)
  local parts = {}
  for r, part in ipairs(all_gather(cat({ tensor({ n }, like), mean, squares }, 1), { group = group })) do
    parts[r] = { n = part[1]:item(), mean = part:narrow(1, 2, c), squares = part:narrow(1, 2 + c, c) }
  end
  while #parts > 1 do
    local row = {}
    for i = 1, #parts, 2 do row[#row + 1] = parts[i + 1] and join(parts[i], parts[i + 1]) or parts[i] end
    parts = row
  end
  return parts[1]
end

-- (x - mean) / sqrt(var + eps), of rows [c, elements] in float32 or float64; the first result of which has a gradient.
local function normalizer(group)
  return gb.Function {
    name = "sync_batch_norm",
    forward = function(ctx, rows, eps)
      local all = measure(rows, group)
      if all.n < 2 then
        fail("SyncBatchNorm: one value per channel has no variance; it takes 2 or more of all processes")
      end
      local var = all.squares / all.n
      local scale = (var + eps):rsqrt()
      local y = (rows - all.mean:unsqueeze(2)) * scale:unsqueeze(2)
      ctx:save_for_backward(y, scale, tensor({ all.n }, { dtype = rows.dtype, device = rows.device }))
      return y, all.mean, all.squares / (all.n - 1)
    end,
    backward = function(ctx, grad)
      local y, scale, n = ctx:saved_tensors()
      local c = y.shape[1]
      local sums = all_reduce(cat({ grad:sum(2), (grad * y):sum(2) }, 1), "sum", { group = group }) / n
      local mean, slope = sums:narrow(1, 1, c):unsqueeze(2), sums:narrow(1, 1 + c, c):unsqueeze(2)
      return (grad - mean - y * slope) * scale:unsqueeze(2)
    end,
  }
end

local normalize = normalizer() -- over all processes

local SyncBatchNorm = layer("gb.nn.SyncBatchNorm(features: size; eps: number = 1e-5, momentum: number = 0.1, affine: \z
  bool = true, bias: bool = true, track_running_stats: bool = true, activation: \"none\"|\"relu\" = \"none\", \z
  process_group?: group) -> module: As BatchNorm1d \z
  to BatchNorm3d, of x [n, c, ...], with the statistics of what all processes of the job run at once, or of a group \z
  of them; every one of these calls it. In DataParallel shards must be the number of processes, since the shards of \z
  one process run one after another. Errors: a batch with fewer samples than processes. Example: local y = \z
  gb.nn.SyncBatchNorm(4)(gb.rand(8, 4))", function(self, features, o)
    native.channel_statistics(self, features, o)
    if o.process_group then
      self.process_group = o.process_group
      self.normalize = normalizer(o.process_group)
    end
  end)

-- A residual has x's shape.
local function check_residual(x, residual)
  native.check_tensor("SyncBatchNorm", residual)
  local has, wants = table.concat(residual.shape, ", "), table.concat(x.shape, ", ")
  if has ~= wants then fail(format("SyncBatchNorm: residual has shape [%s], expected [%s] (x's shape)", has, wants)) end
end

-- The dtype of the sum of two.
local function promoted(a, b)
  return a == b and a or (a == "float64" or b == "float64") and "float64" or "float32"
end

-- The dtype in which a tensor is computed with.
local function widened(x) return x:to(promoted(x.dtype, "float32")) end

function SyncBatchNorm:forward(x, residual, more)
  if more ~= nil then refuse(self, "x and residual") end
  native.check_tensor("SyncBatchNorm", x)
  if residual ~= nil then check_residual(x, residual) end
  if x.ndim < 2 then fail(format("SyncBatchNorm expects 2 dimensions or more, got %d", x.ndim)) end
  if x.shape[2] ~= self.num_features then
    fail(format("SyncBatchNorm: x has %d channels, the layer %d", x.shape[2], self.num_features))
  end
  local training = self.training or self.running_mean == nil
  if not training or world_size(self.process_group) == 1 then
    if self.training and self.num_batches_tracked and not gb.is_recomputing() then
      no_grad(function() self.num_batches_tracked:add_(1) end)
    end
    return gb.nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, residual,
      { training = training, momentum = self.momentum, eps = self.eps, activation = self.activation })
  end
  local y, mean, var = (self.normalize or normalize)(by_channel(widened(x)), self.eps)
  if self.training and self.running_mean and not gb.is_recomputing() then
    no_grad(function()
      self.num_batches_tracked:add_(1)
      self.running_mean:lerp_(mean:to(self.running_mean.dtype), self.momentum)
      self.running_var:lerp_(var:to(self.running_var.dtype), self.momentum)
    end)
  end
  if self.weight then y = y * self.weight:unsqueeze(2) end
  if self.bias then y = y + self.bias:unsqueeze(2) end
  y = by_sample(y, x)
  if residual then y = y + widened(residual) end
  if self.activation == "relu" then y = y:relu() end
  return y:to(residual and promoted(x.dtype, residual.dtype) or x.dtype)
end
function SyncBatchNorm:extra()
  return self.activation == "none" and tostring(self.num_features) or
    format("%d, %s", self.num_features, self.activation)
end
