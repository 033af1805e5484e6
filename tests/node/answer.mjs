// node answer.mjs FOLDER TEXT... -> the scores of each text, as JSON, by an exported model for text-classification.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-node";

const [folder, ...texts] = process.argv.slice(2);
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const config = read("config.json");
const tokenizer = new Tokenizer(read("tokenizer.json"), read("tokenizer_config.json"));
const session = await ort.InferenceSession.create(join(folder, "model.onnx"));

const answers = [];
for (const text of texts) {
  const { ids } = tokenizer.encode(text);
  const tensor = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  const inputs = {
    input_ids: tensor(ids),
    attention_mask: tensor(ids.map(() => 1)),
    token_type_ids: tensor(ids.map(() => 0)),
  };
  const { scores } = await session.run(inputs);
  answers.push(Object.fromEntries([...scores.data].map((score, label) => [config.id2label[label], score])));
}
console.log(JSON.stringify(answers));
