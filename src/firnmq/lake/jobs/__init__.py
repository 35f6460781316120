"""Work that Spark does: conversion into tables, and queries."""
