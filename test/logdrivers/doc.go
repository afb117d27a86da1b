// Package logdrivers tests log drivers on a real node: their services get every line, also when the agent is killed.
package logdrivers
