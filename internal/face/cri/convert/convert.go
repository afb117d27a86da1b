// Package convert has the CRI's small values in both forms: limits, quantities of
// annotations, signals and credentials, as the API writes them and as the engine
// and the OCI spec do.
//
// It is pure, and knows neither sandboxes nor containers. Start at Resources.
package convert
