// Package obs has the means of observing the agent: the slog logger, the metrics and their HTTP
// handler, the gRPC interceptors that all faces share, and the bridges from libraries with loggers
// of their own to ours.
//
// It knows neither the engine nor any face: others count with it. Start reading at metrics.go.
package obs
