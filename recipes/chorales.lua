-- chorales.lua - a recurrent network that writes four voices in the manner of Bach, with gb.Trainer.
--
--   gibbous recipes/chorales.lua --data FOLDER     (train, valid and test, each with a CSV file per chorale)
--
-- A row of a file holds the notes of soprano, alto, tenor and bass in one sixteenth. Two layers of LSTM read the rows
-- (Hochreiter, Schmidhuber 1997); the next row is written voice by voice, each note knowing those above it, as in
-- Boulanger-Lewandowski, Bengio, Vincent 2012. The loss is what a note costs, in nats: repeating the last row is worth
-- 0.770. Expect about 0.50 after 30 epochs, ten minutes on two cores. --midi writes a chorale of its own at the end.

local gb = require "gibbous"
local nn, F, amp, data = gb.nn, gb.nn.functional, gb.amp, gb.data

local args = gb.args {
  { "data", "", "folder with train, valid and test", needed = true },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 30, least = 1 }, { "batch", 16, least = 1 }, { "lr", 2e-3, least = 0 }, { "seed", 1 },
  { "width", 256, "features of each layer", least = 1 }, { "layers", 2, least = 1 }, { "dropout", 0.3, least = 0 },
  { "context", 64, "rows of a piece that is learned from", least = 1 },
  { "rows", 256, "sixteenths to write", least = 1 }, { "temperature", 0.8, "below 1: fewer surprises", least = 0.01 },
  { "midi", "", "where they go (\"\": nowhere)", writes = true },
  { "out", "chorales.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "folder for a checkpoint after every epoch" },
  { "resume", "", "a checkpoint to continue from" },
}
gb.manual_seed(args.seed)
local VOICES, NOTES, FILL = 4, 128, -100 -- MIDI has notes 0 to 127, of which 0 is silence here

-- Batches of the chorales in a folder, each [chorale, row, voice], with FILL behind the shorter ones; where a context
-- is given, of pieces that foretell so many rows.
local function load(folder, shuffle, context)
  local songs, lengths = {}, {}
  for _, path in ipairs(data.files(args.data .. "/" .. folder, { ending = ".csv" })) do
    local song = data.tensors(data.csv(path)):long()
    for from = 1, song:size(1) - 1, context or song:size(1) do
      table.insert(lengths, math.min((context or song:size(1)) + 1, song:size(1) - from + 1))
      table.insert(songs, song:narrow(1, from, lengths[#lengths]))
    end
  end
  return data.DataLoader(data.Dataset(#songs, function(i) return songs[i] end), {
    batch_sampler = data.BucketBatchSampler(lengths, args.batch, { shuffle = shuffle }),
    collate = data.pad_collate { value = FILL }, seed = args.seed,
  }), songs
end
local train, valid = load("train", true, args.context), load("valid", false)
local test, songs = load("test", false)

local Choir = nn.Module:extend("Choir")
function Choir:init(width)
  self.notes, self.hidden, self.heads = {}, {}, {}
  for v = 1, VOICES do
    self.notes[v] = nn.Embedding(NOTES, 32)
    self.hidden[v] = nn.Linear(width + 32 * (v - 1), width, { activation = "relu" })
    self.heads[v] = nn.Linear(width, NOTES)
  end
  self.cells = nn.LSTM(32 * VOICES, width, { num_layers = args.layers, batch_first = true, dropout = args.dropout })
  self.drop = nn.Dropout(args.dropout)
end

-- What is known after each row: [chorale, row, width], and the state to go on from.
function Choir:read(rows, state)
  local parts = {}
  for v = 1, VOICES do parts[v] = self.notes[v](rows:select(3, v)) end
  local y
  y, state = self.cells(gb.cat(parts, 3), state)
  return self.drop(y), state
end

-- The logits of one voice of the next rows, of whose voices those above are known.
function Choir:voice(v, known, rows)
  local parts = { known }
  for above = 1, v - 1 do parts[above + 1] = self.notes[above](rows:select(3, above)) end
  return self.heads[v](self.hidden[v](gb.cat(parts, 3)))
end

function Choir:forward(before, after)
  local known, logits = self:read(before), {}
  for v = 1, VOICES do logits[v] = self:voice(v, known, after) end
  return gb.stack(logits, 3)
end

-- The rows of a batch but the first: what is to be foretold.
local function next_rows(rows) return rows:narrow(2, 2, rows:size(2) - 1) end

local trainer = gb.Trainer {
  model = Choir(args.width), metrics = { "accuracy" },
  compute = function(model, rows)
    local notes, target = rows:clamp(0), next_rows(rows):flatten()
    local logits = model(notes:narrow(2, 1, rows:size(2) - 1), next_rows(notes)):flatten(1, 3)
    return F.cross_entropy(logits, target, { ignore_index = FILL }), logits, target
  end,
  count = function(rows) return next_rows(rows):ne(FILL):sum() end,
  optimizer = { "AdamW", lr = args.lr, weight_decay = 1e-2 }, schedule = { "Cosine", warmup = 0.05 }, clip = 1.0,
  precision = args.precision, device = args.device, epochs = args.epochs,
  checkpoint = args.checkpoint ~= "" and { args.checkpoint, keep = 2 } or nil,
  resume = args.resume ~= "" and args.resume,
}
trainer:fit(train, valid)
local model, found = trainer.model, trainer:validate(test)
print(("test: %.4f nats per note, %.1f %% of notes"):format(found.val_loss, 100 * found.val_accuracy))
if args.out ~= "" then gb.save(args.out, model:state_dict()) end
if args.midi == "" then return end

-- Write on from the first row of a chorale: a list of rows of four notes.
local function compose(first)
  local row, rows, state = first:to(args.device):view(1, 1, VOICES), {}, nil
  for i = 1, args.rows do
    local known
    known, state = model:read(row, state)
    row = gb.zeros(1, 1, VOICES, { dtype = "int64", device = args.device })
    for v = 1, VOICES do
      local logits = model:voice(v, known, row)[1][1]:float() / args.temperature
      row:select(3, v):copy_(logits:softmax(-1):multinomial(1):view(1, 1))
    end
    rows[i] = row:flatten():tolist()
  end
  return rows
end

-- A track of a MIDI file: each note sounds until the voice moves on. A row is 120 ticks.
local function track(rows, v)
  local events, sounding, waited = {}, 0, 0
  local function event(status, note, strength)
    -- the time that has passed, in 7 bits a byte
    events[#events + 1] = waited < 128 and string.char(waited) or
      string.char(128 | waited >> 14, 128 | waited >> 7 & 127, waited & 127)
    events[#events + 1], waited = string.char(status, note, strength), 0
  end
  for i = 1, #rows + 1 do
    local note = rows[i] and rows[i][v] or 0
    if note ~= sounding then
      if sounding > 0 then event(0x80 | v - 1, sounding, 0) end
      if note > 0 then event(0x90 | v - 1, note, 80) end
      sounding = note
    end
    waited = waited + 120
  end
  return string.pack(">c4s4", "MTrk", table.concat(events) .. "\0\xff\x2f\0")
end

model:eval()
local rows = gb.no_grad(function() return amp.autocast(trainer.precision, compose, songs[1][1]) end)
local file <close> = assert(io.open(args.midi, "wb"))
file:write(string.pack(">c4I4I2I2I2", "MThd", 6, 1, VOICES, 480))
for v = 1, VOICES do file:write(track(rows, v)) end
