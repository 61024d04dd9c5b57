mod build;
mod choices;
mod filters;
