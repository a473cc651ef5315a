package solace

// SourceName is what intents and counters say of where they come from.
const SourceName = "solace"
