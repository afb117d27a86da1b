// Package view converts the engine's records to messages of the control API, and to the JSON of inspect. It reads nothing but
// its arguments. Start reading at view.go.
package view
