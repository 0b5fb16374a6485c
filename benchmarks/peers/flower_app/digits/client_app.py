"""What a node does in a round."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import batches_of, network, train

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = batches_of(context.node_config["folder"], context.run_config["batch-size"])
    loss = train(model, batches, context.run_config["learning-rate"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(batches.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
