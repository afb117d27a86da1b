// Package obs has what the agent is observed with: the slog logger, the metrics and their HTTP
// handler, the gRPC interceptors that all faces share, and the bridges from libraries with
// loggers of their own to ours.
//
// It knows neither the engine nor any face: others tell it what to count. Start reading at
// metrics.go.
package obs
