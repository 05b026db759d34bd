-- tabular.lua - a network that learns house prices from a table of numbers, categories and gaps, with gb.Trainer.
--
--   gibbous recipes/tabular.lua --data housing.csv
--
-- Each category has a row of an embedding (Guo, Berkhahn 2016), numbers are standardised, and a value that is missing
-- is its column's mean, or a category of its own. The first row of every five tests. The price is learned as its
-- logarithm, of which R2 is measured. On the house prices of California (20,640 rows) expect an R2 of 0.83 after
-- 60 epochs, which take less than a minute on two cores.

local gb = require "gibbous"
local nn, F, data = gb.nn, gb.nn.functional, gb.data

local args = gb.args {
  { "data", "", "a table with a header line (CSV)", needed = true },
  { "target", "median_house_value", "the column to learn; its values are above 0" },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 60, least = 1 }, { "batch", 256, least = 1 }, { "lr", 2e-3, least = 0 }, { "seed", 1 },
  { "width", 128, "features of the hidden layers", least = 1 }, { "dropout", 0.0, least = 0 },
  { "out", "tabular.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "folder for a checkpoint after every epoch" },
  { "resume", "", "a checkpoint to continue from" },
}
gb.manual_seed(args.seed)

-- Means, deviations and categories are learned from the training rows alone.
local rows = { train = {}, test = {} }
for i = 1, #data.csv(args.data, { target = args.target }) do
  table.insert((i - 1) % 5 == 0 and rows.test or rows.train, i)
end
local preparation = data.Preparation { target = args.target, standardize = true }
local train = preparation:fit(args.data, { rows = rows.train })
local test = preparation:read(args.data, { rows = rows.test })
local prices = select(-1, data.tensors(train)):log()
local mean, std = prices:mean():item(), prices:std():item()

local Net = nn.Module:extend("Net")
function Net:init(columns)
  self.embeddings = {}
  local features, width = 0, args.width
  for _, column in ipairs(columns) do
    if column.tensor == "ids" then
      local size = math.min(#column.categories // 2 + 1, 32)
      table.insert(self.embeddings, nn.Embedding(#column.categories + 1, size)) -- the last row: missing, or unseen
      features = features + size
    elseif column.tensor == "x" then features = features + 1 end
  end
  self.layers = nn.Sequential(
    nn.Linear(features, width, { activation = "relu" }), nn.Dropout(args.dropout),
    nn.Linear(width, width, { activation = "relu" }), nn.Dropout(args.dropout),
    nn.Linear(width, width, { activation = "relu" }), nn.Linear(width, 1)
  )
end
function Net:forward(x, ids)
  local parts = { x }
  for i, embedding in ipairs(self.embeddings) do parts[i + 1] = embedding(ids:select(2, i)) end
  return self.layers(gb.cat(parts, 2)):squeeze(2)
end

-- The loss of a batch, what was foretold, and what is true.
local function compute(model, ...)
  local x, ids, price = ...
  if not price then ids, price = nil, ids end -- a table without categories
  local output, truth = model(x, ids), (price:log() - mean) / std
  return F.mse_loss(output, truth), output, truth
end

local trainer = gb.Trainer {
  model = Net(preparation:columns()), compute = compute, metrics = { "r2" },
  optimizer = { "AdamW", lr = args.lr, weight_decay = 1e-4 }, schedule = { "Cosine", warmup = 0.05 }, clip = 1.0,
  precision = args.precision, device = args.device, epochs = args.epochs,
  checkpoint = args.checkpoint ~= "" and { args.checkpoint, keep = 2 } or nil,
  resume = args.resume ~= "" and args.resume,
}
local values = trainer:fit(
  data.DataLoader(train, { batch_size = args.batch, shuffle = true, seed = args.seed }),
  data.DataLoader(test, { batch_size = 1024 })
)
print(("R2 of the logarithm %.4f"):format(values.val_r2))
if args.out ~= "" then gb.save(args.out, trainer.model:state_dict()) end
