// Package present shows objects in the forms that people know from other command lines: rows by a
// template, filters, and the documents of inspect. It makes no calls: its input is the agent's
// answers.
package present
