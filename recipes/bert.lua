-- bert.lua - a small BERT over bytes: it fills the gaps of a text, then it tells praise from blame, with gb.Trainer.
--
--   gibbous recipes/bert.lua --data FOLDER --text FILE  (the folder with rt-polarity.neg and rt-polarity.pos; any text)
--
-- Devlin, Chang, Lee, Toutanova 2019: of the bytes of a text 15 in a hundred are to be told, most of which are hidden,
-- some changed and some left (a masked language model). Its measure is the perplexity of those bytes on the last tenth
-- of the text: of tinyshakespeare 8.2 after 300 steps, where guessing by how often each byte occurs has 28.4. Then the
-- sentences of Pang, Lee 2005 are sorted twice, by a model from scratch (76 %), and by one that begins with what the
-- text taught, which need not help. Of every ten lines of a file the first tests and the second validates. A byte alone
-- says little: it brings vectors of the 2 to 6 bytes that end with it, by a hash (Clark, Garrette, Turc, Wieting 2022).

local gb = require "gibbous"
local nn, F, data = gb.nn, gb.nn.functional, gb.data

local args = gb.args {
  { "data", "", "folder with rt-polarity.neg and rt-polarity.pos", needed = true },
  { "text", "", "a file to fill the gaps of" },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "steps", 300, "over the text (0: none, and sentences from scratch alone)", least = 0 },
  { "epochs", 2, "over the sentences", least = 1 }, { "batch", 64, least = 1 }, { "seed", 1, "same seed, same bits" },
  { "lr", 1e-3, least = 0 }, { "dropout", 0.1, least = 0 }, { "width", 128, least = 1 },
  { "layers", 3, least = 1 }, { "heads", 4, least = 1 }, { "grams", 6, "bytes with one vector, at most", least = 1 },
  { "block", 128, "bytes of a window", least = 2 }, { "longest", 256, "bytes of a sentence that are read", least = 2 },
  { "out", "bert.safetensors", "where the weights of the last model go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "folder for the checkpoints of each of the three runs" },
  { "resume", "", "a folder of checkpoints to continue from" },
}
if args.steps > 0 and args.text == "" then error("bert: --text names a file to fill the gaps of (or --steps 0)", 0) end
local folder = args.resume ~= "" and args.resume or args.checkpoint
if args.resume ~= "" then gb.data.files(folder) end -- a run that is not there yet begins, a folder must be there
local PAD, HIDDEN, FILL = 0, 1, -100 -- two bytes that no text holds; a target that does not count

local Encoder = nn.Module:extend("Encoder")
function Encoder:init(width)
  self.bytes, self.grams = nn.Embedding(256, width, { padding_idx = PAD }), nn.Embedding(16381, width) -- a prime
  self.positions = nn.Embedding(math.max(args.longest, args.block), width)
  self.drop = nn.Dropout(args.dropout)
  self.blocks = {}
  for i = 1, args.layers do
    self.blocks[i] = nn.TransformerBlock(width, args.heads, { activation = "gelu", dropout = args.dropout })
  end
  self.norm = nn.LayerNorm(width)
  for _, vectors in ipairs { self.bytes, self.grams, self.positions } do nn.init.normal_(vectors.weight, 0, 0.02) end
end

-- What is known of each byte, [batch, time, width]. Nobody looks at padding.
function Encoder:forward(ids)
  local seen = ids:ne(PAD):unsqueeze(2):unsqueeze(2)
  local x = self.drop(self.bytes(ids) + self.positions(gb.arange(ids:size(2), { device = ids.device })))
  local hash = ids
  for n = 1, math.min(args.grams, ids:size(2)) - 1 do
    hash = (hash * 31321 + F.pad(ids, { n, -n })) % self.grams.num_embeddings
    x = x + self.grams(hash)
  end
  for _, block in ipairs(self.blocks) do x = block(x, seen) end
  return self.norm(x)
end

-- Which byte there is, of each.
local Filler = nn.Module:extend("Filler")
function Filler:init(width) self.encoder, self.head = Encoder(width), nn.Linear(width, 256) end
function Filler:forward(ids) return self.head(self.encoder(ids)) end

-- Blame (0) or praise (1), by the mean over the bytes of a sentence.
local Judge = nn.Module:extend("Judge")
function Judge:init(width) self.encoder, self.head = Encoder(width), nn.Linear(width, 2) end
function Judge:forward(ids)
  local seen = ids:ne(PAD):unsqueeze(3):float()
  return self.head((self.encoder(ids) * seen):sum(2) / seen:sum(2))
end

local function compute(model, ids, truth)
  local logits, labels = model(ids):flatten(1, -2), truth:flatten()
  return F.cross_entropy(logits, labels, { ignore_index = FILL }), logits, labels
end

-- A Trainer that has trained a model of a class, perhaps with an encoder that has learned before. Checkpoints go to a
-- folder of this name.
local function train(name, class, encoder, metric, epochs, batches, held_out)
  gb.manual_seed(args.seed)
  local model = class(args.width)
  if encoder then model.encoder:load_state_dict(encoder:state_dict()) end
  local trainer = gb.Trainer {
    model = model, compute = compute, metrics = { metric }, epochs = epochs, clip = 1.0,
    optimizer = { "AdamW", lr = args.lr, weight_decay = 1e-2 }, schedule = { "Cosine", warmup = 0.1 },
    precision = args.precision, device = args.device, validate_every = name == "gaps" and 0.25 or 1.0,
    checkpoint = folder ~= "" and { folder .. "/" .. name, keep = 2 } or nil, resume = args.resume ~= "",
  }
  trainer:fit(batches, held_out)
  return trainer
end

-- Hide bytes of a list of windows: what can be read, and what was there.
local function hide(samples)
  local windows = {}
  for i, sample in ipairs(samples) do windows[i] = sample[1] end
  local ids, dice = gb.stack(windows), gb.rand(#windows, args.block)
  local read = gb.where(dice:lt(0.015), gb.randint(1, 256, ids.shape), ids:masked_fill(dice:lt(0.135), HIDDEN))
  return read, ids:masked_fill(dice:ge(0.15), FILL)
end

-- A model that has learned to fill the gaps of the text.
local function read_text()
  local file = data.tokens(args.text, { dtype = "uint8" })
  if #file <= 20 * args.block then error("bert: --text needs more than 20 * --block bytes, it has " .. #file, 0) end
  local ids = file:windows(#file - 1):get(1) -- all but the last byte
  local from = ids:numel() * 9 // 10
  local known, held_out = ids:narrow(1, 1, from), ids:narrow(1, from + 1, ids:numel() - from)
  local windows = data.Dataset(from - args.block + 1, function(i) return known:narrow(1, i, args.block) end)
  local count = math.min(held_out:numel() // args.block, 10 * args.batch)
  local pieces = data.TensorDataset(held_out:narrow(1, 1, count * args.block):view(count, args.block))
  local trainer = train("gaps", Filler, nil, "perplexity", 1, data.DataLoader(windows, {
    batch_size = args.batch, seed = args.seed, collate = hide,
    sampler = data.RandomSampler(#windows, { replacement = true, samples = args.steps * args.batch }),
  }), data.DataLoader(pieces, { batch_size = args.batch, collate = function(samples) -- the same gaps every time
    return gb.random.fork(function() gb.manual_seed(1) return hide(samples) end)
  end }))
  local share = gb.bincount(known, nil, { minlength = 256 }):double() + 1
  local alone = math.exp(-(share / share:sum()):log():index_select(1, held_out):mean():item())
  print(("perplexity of hidden bytes %.3f, by frequency alone %.3f"):format(trainer.values.val_perplexity, alone))
  return trainer.model
end

local files = { args.data .. "/rt-polarity.neg", args.data .. "/rt-polarity.pos" } -- labels 0 and 1
local lines = data.lines(files, { level = "text", encoding = "bytes" })
local bytes, parts, seen = data.Vocabulary(nil, { level = "bytes" }), { {}, {}, {} }, { [0] = 0, 0 }
for i = 1, #lines do
  local text, label = lines:get(i)
  local part = parts[seen[label] % 10 == 0 and 1 or seen[label] % 10 == 1 and 2 or 3]
  table.insert(part, { bytes:encode(text:sub(1, args.longest)), label })
  seen[label] = seen[label] + 1
end
for p, part in ipairs(parts) do
  local lengths = {}
  for i, sample in ipairs(part) do lengths[i] = sample[1]:numel() end
  parts[p] = data.DataLoader(data.Dataset(#part, function(i) return part[i][1], part[i][2] end), {
    batch_sampler = data.BucketBatchSampler(lengths, args.batch, { shuffle = p == 3 }),
    collate = data.pad_collate { value = PAD }, seed = args.seed,
  })
end
local test, valid, known = table.unpack(parts)

local function judge(name, encoder)
  local trainer = train(name, Judge, encoder, "accuracy", args.epochs, known, valid)
  print(("test accuracy from %s %.2f %%"):format(name, 100 * trainer:validate(test).val_accuracy))
  return trainer.model
end

local filler, model = args.steps > 0 and read_text(), judge "scratch"
if filler then model = judge("text", filler.encoder) end
if args.out ~= "" then gb.save(args.out, model:state_dict()) end
