// Package arch holds no code: its tests keep the house as ARCHITECTURE.md draws
// it, layers and budgets. Start at layers_test.go.
package arch
