-- lstm_sentiment.lua - a recurrent network that tells praise from blame, in mixed precision.
--
--   gibbous recipes/lstm_sentiment.lua --data FOLDER     (the folder with rt-polarity.neg and rt-polarity.pos)
--
-- A bidirectional LSTM (Hochreiter, Schmidhuber 1997) or GRU over embeddings of words, which it learns from the
-- sentences alone; they are those of Pang, Lee 2005. Of every ten lines of a file the first tests and the second
-- validates. Batches hold sentences of about one length, and the lengths go with them, so no step is spent on filling.
-- Expect about 75 % after 8 epochs, some minutes on two cores; PyTorch in float32 reaches 75.8 to 76.7 %.

local gb = require "gibbous"
local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data

local args = gb.args {
  { "data", "", "folder with rt-polarity.neg and rt-polarity.pos", needed = true },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 8, least = 1 }, { "batch", 64, least = 1 }, { "lr", 2e-3, least = 0 }, { "seed", 1 },
  { "cell", "LSTM", "LSTM or GRU" }, { "width", 128, "features of a word, and of each direction", least = 1 },
  { "dropout", 0.5, least = 0 }, { "clip", 1.0, "the largest norm of the gradients (0: any)", least = 0 },
  { "encoding", "utf-8", "of the files: utf-8 or latin-1" },
  { "out", "lstm_sentiment.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "write a checkpoint here after every epoch", writes = true },
  { "resume", "", "a checkpoint to continue from" },
}
if args.cell ~= "LSTM" and args.cell ~= "GRU" then error("lstm_sentiment: --cell is LSTM or GRU", 0) end
gb.manual_seed(args.seed)
local precision = amp.precision(args.precision)

-- The label is the place of the file: 0 is blame, 1 is praise.
local files = { args.data .. "/rt-polarity.neg", args.data .. "/rt-polarity.pos" }
local sentences = data.lines(files, { level = "text", encoding = args.encoding })
local parts, seen = { train = {}, valid = {}, test = {} }, { [0] = 0, 0 }
for i = 1, #sentences do
  local _, label = sentences:get(i)
  local line = seen[label]
  table.insert(line % 10 == 0 and parts.test or line % 10 == 1 and parts.valid or parts.train, i)
  seen[label] = line + 1
end
local vocabulary = data.Vocabulary(data.Subset(sentences, parts.train), { min_count = 2, lower = true })

-- Batches of one part: ids [batch, time], labels, and the lengths of the sentences.
local function load(part, shuffle)
  local ids, labels, lengths = {}, {}, {}
  for i, place in ipairs(part) do
    local text, label = sentences:get(place)
    ids[i], labels[i] = vocabulary:encode(text), label
    lengths[i] = ids[i]:numel()
  end
  return data.DataLoader(data.Dataset(#ids, function(i) return ids[i], labels[i] end), {
    batch_sampler = data.BucketBatchSampler(lengths, args.batch, { shuffle = shuffle }),
    collate = data.pad_collate(), seed = args.seed,
  })
end
local train, valid, test = load(parts.train, true), load(parts.valid, false), load(parts.test, false)

local Net = nn.Module:extend("Net")
function Net:init(words, width)
  self.words = nn.Embedding(words, width, { padding_idx = 0 })
  self.drop = nn.Dropout(args.dropout)
  self.cells = nn[args.cell](width, width, { batch_first = true, bidirectional = true })
  self.head = nn.Linear(2 * width, 2)
end
function Net:forward(ids, lengths)
  local _, state = self.cells(self.drop(self.words(ids)), nil, { lengths = lengths })
  local h = args.cell == "LSTM" and state[1] or state -- what each direction ends with: [2, batch, width]
  return self.head(self.drop(gb.cat({ h[1], h[2] }, 2)))
end

local model = Net(#vocabulary, args.width):to(args.device, precision)
local opt = optim.AdamW(model:parameters(), { lr = args.lr })
local scaler = amp.GradScaler(precision)

-- The share of sentences that are told right, in percent.
local function evaluate(loader)
  local metrics = gb.Metrics { "accuracy" }
  model:eval()
  gb.no_grad(function()
    for ids, labels, lengths in loader:iter(args.device) do
      metrics:update(amp.autocast(precision, model, ids, lengths), labels)
    end
  end)
  model:train()
  return 100 * metrics:compute().accuracy
end

local state = { model = model, optimizer = opt, scaler = scaler, loader = train }
local first = 1
if args.resume ~= "" then first = gb.io.load_checkpoint(args.resume, state).epoch + 1 end

for epoch = first, args.epochs do
  local bar = gb.progress(#train, "epoch " .. epoch)
  for ids, labels, lengths in train:iter(args.device) do
    opt:zero_grad()
    local loss = amp.autocast(precision, function() return F.cross_entropy(model(ids, lengths), labels) end)
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
    nn.utils.clip_grad_norm_(model:parameters(), args.clip > 0 and args.clip or math.huge)
    scaler:step(opt)
    scaler:update()
    bar:update(1, { loss = loss, scale = scaler })
  end
  bar:close(("validation accuracy %.2f %%"):format(evaluate(valid)))
  if args.checkpoint ~= "" then
    state.extra = { epoch = epoch }
    gb.io.save_checkpoint(args.checkpoint, state)
  end
end
print(("test accuracy %.2f %%"):format(evaluate(test)))
if args.out ~= "" then gb.save(args.out, model:state_dict()) end
