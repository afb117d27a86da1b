// Package obs is how the agent is observed: the slog logger, the metrics and
// the HTTP handler that shows them, the gRPC interceptors that every face
// shares, and the bridges by which libraries with loggers of their own end up
// in ours.
//
// It must not know the engine or any face: what it counts is told to it. Start
// reading at metrics.go.
package obs
